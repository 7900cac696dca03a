"""A recipe for a model that a user names: what its files say of it, and rounds that the plan fits on one GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
from transformers import PreTrainedModel

from alignopsd_trl.checks.loading import check_architecture, model_of
from alignopsd_trl.commands.launch import memory
from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.launch.machine import Launch
from alignopsd_trl.commands.launch.memory_plan import PAYS, ROOM, PlannedMemory, planned_memory
from alignopsd_trl.commands.launch.model_files import Thinking, thinking
from alignopsd_trl.commands.launch.presets import ONE_GPU
from alignopsd_trl.commands.launch.unsuited import SMALL
from alignopsd_trl.common.literals import literal
from alignopsd_trl.methods import get_method

PROMPT, RESPONSE, THOUGHTS = 2048, 512, 2048
"""Tokens of a prompt, of a response, and of one of a model that thinks."""
TURNS = 16  # of an episode, where the world does not say
ROUNDS = ((8, 8), (4, 8), (4, 4))  # tasks and siblings, the larger the better
FORWARDS = (16384, 8192, 4096)  # tokens, which change no result
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)  # of the GPU, for vLLM
AT_ONCE = (16, PAYS)  # full-length responses that vLLM should hold
VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
SAMPLERS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("vLLM on the same GPU, asleep while the policy learns", VLLM),
    ("no vLLM, whose weights have no room beside these: sampling is slow", {"use_vllm": False}),
    ("weights of 4 bits, without vLLM: sampling is slow", {"use_vllm": False, "load_in_4bit": True}),
)
"""How the policy samples on a GPU, the first that fits, and its settings."""


@dataclass(frozen=True)
class HubModel:
    """A model by its name: a folder, an id of the Hub, or ``smollm2``. Its configuration is read; its weights are not.

    Raises:
        ValueError: if its files are neither here nor reached, or transformers can't make it.
    """

    name: str
    prompt: int = PROMPT  # tokens

    @cached_property
    def config(self) -> Any:
        return memory.config_of(self.name)

    @cached_property
    def shape(self) -> memory.Backbone:
        return memory.backbone(self.name)

    @cached_property
    def thinks(self) -> Thinking:
        return thinking(self.name, self.config.model_type)

    def lengths(self, prompt: int = 0, response: int = 0) -> dict[str, int]:
        """Returns the tokens of a prompt and of a response, by default of one that thinks if the model does, which the
        model's positions hold."""
        prompt, response = prompt or self.prompt, response or (RESPONSE if self.thinks == "no" else THOUGHTS)
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None) or prompt + response
        if positions <= response:
            raise ValueError(f"model={self.name!r} has {positions} positions, and responses {response} tokens")
        return {"max_prompt_length": min(prompt, positions - response), "max_completion_length": response}

    @cached_property
    def empty(self) -> PreTrainedModel:
        """The model without weights, of the class that the trainer makes."""
        with torch.device("meta"):
            return model_of(self.config)

    @cached_property
    def own(self) -> dict[str, Any]:
        """The settings without which `check_architecture` refuses the model, and the layers that its adapter is for if
        some of them read no text."""
        config, found = self.config.get_text_config(), dict[str, Any]()
        if getattr(config, "router_aux_loss_coef", 0.0):
            found["router_aux_loss_coef"] = 0.0  # of a mixture: its balancing loss is a mean per forward
        names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier")
        if any(getattr(config, name, None) not in (None, 1) for name in names):
            found["rectify"] = False  # the head's logits are changed afterwards
        decoder, names = self.empty.get_decoder(), {one: name for name, one in self.empty.named_modules()}
        linear = {one for one in names if isinstance(one, torch.nn.Linear)}
        reading = linear & set(decoder.modules())
        if linear - reading - {self.empty.get_output_embeddings()}:
            kinds = sorted({names[one].rpartition(".")[2] for one in reading})
            found["lora_target_modules"] = [rf"{re.escape(names[decoder])}\..*\.({'|'.join(kinds)})"]
        return found


@dataclass(frozen=True)
class FittedRecipe:
    """Settings with which a plan fits on a GPU, how the policy samples there, and that plan's memory."""

    settings: Mapping[str, Any]
    samples: str
    planned: PlannedMemory


def fit(model: HubModel, gpu_gib: float, turns: int = TURNS) -> FittedRecipe:
    """Returns the first settings that fit: those that change no result are lowered first, then the round, and last
    the way of sampling.

    Args:
        turns: of an episode at most.

    Raises:
        ValueError: if nothing fits; says what the least takes. If the trainer does not train such a model.
    """
    least: PlannedMemory | None = None
    for samples, sampler in SAMPLERS:
        fixed = {**ONE_GPU, **model.lengths(), **model.own, **sampler, "environment": "a_task"}
        fixed |= {"model_name_or_path": model.name, "num_generations": 8, "tasks_per_round": 8}
        recipe, args, loads = parse("a_task", ["--plan", "--gpu_gib", f"{gpu_gib}"], fixed)
        with torch.device("meta"):
            check_architecture(model.empty, args, get_method(args.method)(args))
        loaded = memory.loading(model.config, loads, args, Launch())
        for chosen, at_once in _choices(sampler):
            for name in ("tokens_per_forward", "vllm_gpu_memory_utilization"):
                setattr(args, name, chosen.get(name, getattr(args, name)))
            episodes = chosen["tasks_per_round"] * chosen["num_generations"]
            planned = planned_memory(model.shape, loaded, recipe, args, Launch(), turns * episodes)
            least = planned if least is None or planned.most < least.most else least
            roomy = planned.engine is None or planned.engine.sequences >= at_once
            if planned.most <= ROOM * gpu_gib and roomy and not planned.problem:
                return FittedRecipe({**sampler, **chosen, **model.own}, samples, planned)
    assert least is not None
    raise ValueError(
        f"model={model.name!r} does not fit on a GPU of {gpu_gib:g} GiB: with LoRA it takes {least.most:.0f} GiB at "
        "least, and a tenth should stay free; take a larger GPU, a smaller model, or several GPUs (docs/launch.md)"
    )


def _choices(sampler: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields settings, the wanted ones first, each with the full-length responses that vLLM should hold."""
    shares, held = (SHARES, AT_ONCE) if sampler["use_vllm"] else ((None,), (0,))
    for (tasks, siblings), at_once, share, tokens in product(ROUNDS, held, shares, FORWARDS):
        own = {} if share is None else {"vllm_gpu_memory_utilization": share}
        yield {"tasks_per_round": tasks, "num_generations": siblings, "tokens_per_forward": tokens, **own}, at_once


GUIDE = 'TRL\'s page "LoRA Without Regret"'  # of Schulman et al., 2025
ADAPTER = {"lora_r": 16, "learning_rate": 1e-5}
TWO_CORES = {"learning_rate": 2e-4, "updates_per_round": 4, "tasks_per_round": 6, "num_generations": 6}
"""Settings of a small model's recipe on two cores, over `SMOLLM2`."""
WHY = {
    "lora_r": f"of all linear layers; reward needs little: {GUIDE} has 1 to 32",
    "learning_rate": "an adapter's: by that page ten times the 1e-6 of all weights",
    "num_generations": "siblings a task",
    "tokens_per_forward": "changes no result",
    "vllm_enable_sleep_mode": "asleep while the policy learns",
    "router_aux_loss_coef": "its balancing loss is a mean per forward",
    "rectify": "this model changes its logits after the head",
    "lora_target_modules": "those that read text",
}
"""What a recipe says behind a setting."""
ON_TWO_CORES = {
    **{"ONE_GPU": "SMOLLM2", "ROUNDS = 48": "ROUNDS = 10"},
    "use_peft=True, until_read=0.95": "batch_size=8, learning_rate=2e-4, minutes=6, until_read=0.95",
    '"End with a line of the form\\nAnswer: the answer alone"': '"Reply with the answer alone."',
}
"""What is written there in place of the templates' texts; such a model does not reason before it answers."""
WIDTH = 120
OF_RESPONSES: dict[Thinking, str] = {
    "no": "of one turn; by its files this model does not think",
    "by choice": 'of one turn, with thoughts; off, at 512: "chat_template_kwargs": {"enable_thinking": False}',
    "always": "of one turn; by its files this model thinks",
}


def recipe_changes(
    name: str, gpu_gib: float | None, turns: int = TURNS, prompt: int = PROMPT
) -> tuple[dict[str, str], str]:
    """Returns what a model's recipe says in place of the template's marks, and the model and its machine in words.
    ``gpu_gib`` of `None` are those of this machine's GPU; without one a model of millions is trained on two cores, and
    others are for 80 GiB. ``prompt`` is what a prompt has at most, in tokens. Raises `ValueError` as [`HubModel`] and
    [`fit`]."""
    model = HubModel(name, prompt)
    parameters, thought = model.shape.parameters, "does not think" if model.thinks == "no" else "thinks"
    size = f"{parameters / 1e9:.1f} billion" if parameters >= 5e8 else f"{parameters / 1e6:.0f} million"
    changes, told = {'"MODEL_ID"': literal(name), "MODEL_NAME": name}, f"{name} ({size} parameters, {thought})"
    if gpu_gib is None and parameters <= SMALL and not torch.cuda.is_available():
        changes |= ON_TWO_CORES
        why = {"learning_rate": "as in recipes/sums_smollm.py", "max_completion_length": "of one turn"}
        short = 1024 if prompt == PROMPT else prompt
        settings, machine = {**TWO_CORES, **model.lengths(short, 48)}, "two cores"
    else:
        gpu = memory.gpu_memory(gpu_gib)
        found = fit(model, gpu, turns)
        machine = f"one GPU of {gpu:.0f} GiB, {found.planned.most:.0f} at most by the plan: {found.samples}"
        settings, why = (
            {**ADAPTER, **model.lengths(), **found.settings},
            {"max_completion_length": OF_RESPONSES[model.thinks]},
        )
    lines = [line for one, value in settings.items() for line in _lines(one, literal(value), (WHY | why).get(one, ""))]
    return changes | {"MACHINE": machine, "    # SETTINGS": "\n".join(lines)}, f"{told} on {machine}"


def _lines(name: str, value: str, why: str) -> list[str]:
    """Returns a setting's line in a recipe, with its reason behind it or, if that is long, above it."""
    line = f'    "{name}": {value},'
    if not why:
        return [line]
    return [f"{line}  # {why}"] if len(f"{line}  # {why}") <= WIDTH else [f"    # {why}", line]
