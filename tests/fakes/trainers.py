"""Trainers over the toy game, and the loss of their rows computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fakes.playing import seed_requests
from fakes.toy import ToyEnvironment, build_model, build_tokenizer, scripted, toy_dataset
from transformers import TrainerCallback

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.sampling.trl_engine import EngineBackend
from alignopsd_trl.trainer import AlignOPSDTrainer

DEFAULTS = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "disable_tqdm": True,
    "method": "grpo",
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_steps": 1,
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "max_prompt_length": 128,
    "max_completion_length": 12,
    "skill_tokens": 30,
    "save_strategy": "no",
    "save_trajectories": False,
    "gradient_checkpointing": False,
    "max_grad_norm": 0.0,
}


class Watched(AlignOPSDTrainer):
    """Keeps the rows of its rounds and the gradients of its optimiser steps."""

    seen_rows: list[dict[str, torch.Tensor]]
    seen_gradients: list[dict[str, torch.Tensor]]


def make_config(folder: Path, **options: Any) -> AlignOPSDConfig:
    return AlignOPSDConfig(output_dir=str(folder), **DEFAULTS | options)


def make_trainer(
    folder: Path,
    factory: Any = ToyEnvironment,
    script: bool | str = True,
    policy: Path | None = None,
    tasks: int = 16,
    parts: dict[str, Any] | None = None,
    kind: type[Watched] = Watched,
    config: Callable[..., AlignOPSDConfig] = make_config,
    **options: Any,
) -> Watched:
    """A trainer of the toy game; ``script`` replaces sampling by responses that depend on the prompt alone;
    ``"seeded"`` samples each request by its own seed, and nobody waits for anybody."""
    tokenizer = build_tokenizer()
    if policy is None:
        policy = folder / "policy"
        build_model(tokenizer).save_pretrained(policy)
    trainer = kind(
        str(policy),
        config(folder, **options),
        environment_factory=factory,
        train_dataset=toy_dataset(tasks),
        skill_bank="webshop",
        encoder="lexical",
        processing_class=tokenizer,
        **(parts or {}),
    )
    if script == "seeded":
        seed_requests(trainer)
    elif script:
        scripted(trainer)
    watch(trainer)
    return trainer


def trained(folder: Path, *given: Any, **options: Any) -> Watched:
    """A trainer as `make_trainer` makes it, after its training."""
    trainer = make_trainer(folder, *given, **options)
    trainer.train()
    return trainer


class _Gradients(TrainerCallback):
    def __init__(self, trainer: Watched):
        self.trainer = trainer

    def on_pre_optimizer_step(self, *ignored: Any, **also: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self.trainer.seen_gradients.append(
            {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
        )


def watch(trainer: Watched) -> None:
    """Keeps the rows of every round and the gradients of every optimiser step."""
    trainer.seen_rows, trainer.seen_gradients = [], []
    inner = trainer._generate_and_score_completions

    def rounds(inputs: Any) -> dict[str, torch.Tensor]:
        rows = inner(inputs)
        trainer.seen_rows.append({name: value.clone() for name, value in rows.items()})
        return rows

    trainer._generate_and_score_completions = rounds
    trainer.add_callback(_Gradients(trainer))


def variety(trajectory: list[Any], **columns: Any) -> list[float]:
    """A reward function that tells siblings apart, won or not, cut or not, so that every update moves the weights."""
    return [0.01 * len({token for turn in one.turns for token in turn.response_ids}) for one in trajectory]


def losses(trainer: AlignOPSDTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def log_probs_of(model: Any, prompt: Any, response: Any, temperature: float = 1.0) -> torch.Tensor:
    """Of each token of a response, by one forward of the prompt and the response alone."""
    prompt, response = torch.as_tensor(prompt), torch.as_tensor(response)
    logits = model(torch.cat([prompt, response]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, response.unsqueeze(1)).squeeze(1)


def kept(owner: Any, name: str, parts: bool = False) -> list[Any]:
    """What a method of an object gives from now on, call by call; or the parts of the lists that it gives."""
    inner, found = getattr(owner, name), []
    keep = found.extend if parts else found.append
    setattr(owner, name, lambda *given, **options: keep(made := inner(*given, **options)) or made)
    return found


def rounds_of(trainer: Any) -> list[Any]:
    """The rounds that a trainer records from now on."""
    inner, found = trainer.recorder.record, []
    trainer.recorder.record = lambda played, *others: found.append(played) or inner(played, *others)
    return found


def hand_loss(model: Any, parts: list[dict[str, torch.Tensor]]) -> tuple[float, dict[str, torch.Tensor]]:
    """The token-mean policy loss at ratio 1 over the rows of all processes, one unpadded row at a time, and its
    gradient."""
    model.zero_grad()
    tokens = sum(int((part["completion_mask"] * part["tool_mask"]).sum()) for part in parts)
    total = torch.zeros(())
    for part in parts:
        for row in range(len(part["prompt_ids"])):
            prompt = part["prompt_ids"][row][part["prompt_mask"][row].bool()]
            response = part["completion_ids"][row][part["completion_mask"][row].bool()]
            log_probs = log_probs_of(model, prompt, response)
            mask = part["tool_mask"][row][: len(response)]
            advantage = part["advantages"][row][: len(response)]
            total = total - (torch.exp(log_probs - log_probs.detach()) * advantage * mask).sum() / tokens
    total.backward()
    return total.item(), {name: value.grad.clone() for name, value in model.named_parameters()}


def difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


class FakeSampler:
    """Stands in for vLLM: the same responses, with log-probs that are off by a known amount."""

    temperature, max_completion_length, enable_sleep_mode = 1.0, 12, False

    def __init__(self, trainer: AlignOPSDTrainer, offset: float):
        self.trainer, self.offset, self.synced = trainer, offset, 0
        self.respond = trainer.backend.sampler(self.temperature, self.max_completion_length).respond

    def sync_weights(self) -> None:
        self.synced += 1

    def _iter_named_params(self):
        return self.trainer.model.named_parameters()

    def generate(self, prompts, images, num_generations, profiler):
        responses, _ = self.respond(prompts)
        values = []
        for prompt, response in zip(prompts, responses, strict=True):
            exact = log_probs_of(self.trainer.model, prompt, response).tolist()
            values.append([[value - self.offset] for value in exact])
        return prompts, responses, values, None


def with_sampler(trainer: AlignOPSDTrainer, offset: float) -> FakeSampler:
    """Lets a scripted trainer believe that it samples with vLLM."""
    trainer.vllm_generation = FakeSampler(trainer, offset)
    trainer.backend = trainer.samplers.backend = EngineBackend(trainer, trainer.processes)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    return trainer.vllm_generation
