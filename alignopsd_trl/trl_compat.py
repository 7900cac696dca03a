"""The one place that touches private names of TRL, transformers and Accelerate, one function each.

Pinned to ``trl>=1.16,<1.17``; `tests/test_trl_compat.py` fails with the name of whatever moves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import fsdp2_prepare_model
from torch.utils.checkpoint import checkpoint
from transformers import Cache
from transformers.integrations import deepspeed
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import grpo_trainer
from trl.trainer import utils as trl_utils
from trl.trainer.utils import use_adapter

from alignopsd_trl.options import as_mapping
from alignopsd_trl.policy import strategies
from alignopsd_trl.policy.kv_room import Room, room, token_bytes
from alignopsd_trl.policy.packing import Packed, depends_on_length, why_plain
from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.policy.samplers import LoopSampler
from alignopsd_trl.policy.scoring import Mix, Padded
from alignopsd_trl.policy.slots import SlotSampler
from alignopsd_trl.policy.teacher_weights import TeacherWeights
from alignopsd_trl.policy.temporarily import temporarily
from alignopsd_trl.policy.turn_rows import sampling_log_probs
from alignopsd_trl.policy.vllm_samplers import SteppingSampler
from alignopsd_trl.reading import Reader
from alignopsd_trl.rollout import Response, Responses, SamplerDown
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import GRPOConfig, GRPOTrainer

    from alignopsd_trl.config import AlignOPSDConfig

    class Trainer(GRPOTrainer):
        """TRL's trainer with the types that it has here: by its own it trains more than language models."""

        args: AlignOPSDConfig
        model: PreTrainedModel
        ref_model: PreTrainedModel | None
        processing_class: PreTrainedTokenizerBase
        max_completion_length: int
        vllm_generation: Any
        reward_funcs: list[Callable[..., Any]]
        hub_model_id: str | None


OVERRIDES = {
    "_generate_and_score_completions": "a round is episodes of many turns, with credit a turn",
    "compute_loss": "sub-chunks, and what methods add to the loss",
    "training_step": "seconds, gradients in shards, a loss that is not finite",
    "prediction_step": "an evaluation plays episodes",
    "train": "an output folder is one run's; resuming is exact",
    "save_model": "whole files of finite weights, without the token",
    "push_to_hub": "one commit of what a card is about, and nothing else of the folder",
    "_push_from_checkpoint": "as above, and a push that fails does not end the run",
    "create_model_card": "a card of our own",
    "_get_train_sampler": "an order of tasks that knows its epoch",
    "_run_epoch": "tells it; a run that has ended trains nothing when it is resumed",
    "_save_checkpoint": "what is ours goes into it first, the mark of a whole one comes last",
    "_save_rng_state": "all processes' files are there before that mark",
}
"""What `trainer.AlignOPSDTrainer` overrides of TRL's trainer and those below it: why."""

PRIVATE = {
    "GRPOTrainer._get_per_token_logps_and_entropies": "scoring by TRL's own forward",
    "GRPOTrainer._generate_single_turn": "sampling through vLLM or transformers' generate",
    "GRPOTrainer._calculate_rewards": "reward functions in all of TRL's forms",
    "GRPOTrainer._compute_loss": "TRL's losses",
    "GRPOTrainer._metrics": "numbers of the next line of the log",
    "GRPOTrainer._logs": "the table of completions",
    "GRPOTrainer._last_loaded_step": "makes the next generation push the weights",
    "VLLMGeneration._llm_weights_sleeping": "an engine that wakes once a round",
    "VLLMGeneration._iter_named_params": "a server that does not take the weights ends the run on all processes",
    "generate._is_fsdp_managed_module": "generation that goes on until all processes have finished",
    "deepspeed._hf_deepspeed_config_weak_ref": "models beside the policy are loaded whole",
    "utils._use_triton": "patched: the vocabulary head takes labelled positions alone, on CPU too",
    "config._attn_implementation": "which masks attention takes",
}
"""Private names that this module reads, calls or patches: what for. Public ones that it patches for a while are
`vllm_generation.LLM`, `VLLMGeneration.vllm_client` (each of several servers gets the weights),
`grpo_trainer.prepare_fsdp` and `Accelerator.gather`."""

TILE = 1024  # positions whose logits are made at once
_EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"

# Accelerate calls the device of each of several CPU processes cpu:0, and transformers loads the optimiser's state to
# that name; torch knows the device as cpu alone.
torch.serialization.register_package(
    5, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None
)


class PolicyScorer:
    """The trained policy (or its frozen reference, or its teacher) as a `ScoringModel`.

    Args:
        trainer: whose model, autocast and fused language-model head are used.
        reference: score with the reference model in place of the policy.
        teacher: weights that score in place of the policy's.
    """

    def __init__(self, trainer: Trainer, reference: bool = False, teacher: TeacherWeights | None = None):
        self._trainer = trainer
        self._reference, self._teacher = reference, teacher

    @property
    def device(self) -> torch.device:
        return self._trainer.accelerator.device

    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor:
        trainer = self._trainer
        ids = torch.cat([prompt.ids, response.ids], dim=1)
        mask = torch.cat([prompt.mask, response.mask], dim=1)
        model = trainer.ref_model if self._reference and trainer.ref_model is not None else trainer.model
        model = as_causal(trainer, model)
        with self._scoring(), head_on_labels(self.device):
            return trainer._get_per_token_logps_and_entropies(model, ids, mask, response.ids.size(1))[0].float()

    def shared(self, rows: Packed, before: Cache | None = None) -> torch.Tensor:
        trainer = self._trainer
        known = {} if before is None else {"past_key_values": before}
        model = trainer.ref_model if self._reference and trainer.ref_model is not None else trainer.model
        mask = rows.attention_mask(attention_of(trainer), 0 if before is None else before.get_seq_length())
        with self._scoring(), trainer.accelerator.autocast(), head_on_labels(self.device):
            output = model(
                input_ids=rows.ids,
                attention_mask=mask,
                position_ids=None if mask is None else rows.position,  # a jump would make transformers build a mask
                shift_labels=rows.labels,
                fused_lm_head=True,
                **known,
            )
        return output.log_probs.float()

    def largest(
        self, prompt: Padded, response: Padded, count: int, views: int = 1, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.cat([prompt.ids, response.ids], dim=1)
        mask = torch.cat([prompt.mask, response.mask], dim=1)
        with self._scoring():
            return largest_logits(self._trainer, ids, mask, response.ids.size(1), count, views, mix)

    @contextlib.contextmanager
    def _scoring(self) -> Generator[None]:
        trainer = self._trainer
        with (
            torch.no_grad(),
            _without_checkpointing(trainer),
            self._adapter(),
            contextlib.nullcontext() if self._teacher is None else self._teacher.in_place(),
        ):
            yield

    def _adapter(self) -> AbstractContextManager:
        """For a LoRA policy the reference is the adapter switched off, or its frozen copy where one was passed in."""
        if not self._reference or self._trainer.ref_model is not None:
            return contextlib.nullcontext()
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)


def _without_checkpointing(trainer: Trainer) -> AbstractContextManager[None]:
    return disable_gradient_checkpointing(trainer.model, as_mapping(trainer.args.gradient_checkpointing_kwargs) or None)


def initial_weights(trainer: Trainer) -> TeacherWeights:
    """The trained parameters before training: the reference's own in full fine-tuning, where one is loaded, whole, and
    stands still, else a copy."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.ref_model is None or trainer.args.sync_ref_model or trainer.is_fsdp_enabled:
        return TeacherWeights(model)
    return TeacherWeights(model, dict(trainer.accelerator.unwrap_model(trainer.ref_model).named_parameters()))


def _text_config(trainer: Trainer) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()


def attention_of(trainer: Trainer) -> str:
    return _text_config(trainer)._attn_implementation


def why_not_shared(trainer: Trainer) -> str | None:
    """Why prompts can't be shared in scoring with this model, or ``None`` if they can."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "its adapter puts virtual tokens before the row"
    return why_plain(_text_config(trainer), attention_of(trainer))


def causal_is_enough(trainer: Trainer) -> bool:
    """Whether rows with all padding behind need no mask. They do with sliding windows, layers of other kinds, positions
    that depend on the row's length, and flash attention, which packs the real tokens by the mask."""
    return why_not_shared(trainer) is None


def logits_after_head(trainer: Trainer) -> str | None:
    """What a model does to the logits that its head made, or `None`: of no account for the largest of them, but what is
    mixed inside the head would miss it."""
    config = _text_config(trainer)
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier")
    found = [f"{name}={getattr(config, name)}" for name in names if getattr(config, name, None) not in (None, 1)]
    return found[0] if found else None


def why_not_merged(trainer: Trainer) -> str | None:
    """Why the turns of a dialogue can't share a row with this model, or ``None`` if they can."""
    return depends_on_length(_text_config(trainer))


def head_on_labels(device: torch.device) -> AbstractContextManager[None]:
    """TRL's fused head takes the labelled positions alone. It does so by itself where Triton runs; on CPU and MPS it
    would project every position of the prompt and the padding as well."""
    if device.type not in ("cpu", "mps"):
        return contextlib.nullcontext()
    return temporarily(trl_utils, _use_triton=lambda device: True)


class WatchedModel:
    """The policy as TRL's loss calls it, with labels on the tokens alone that the loss reads: what the environment said
    between the turns of a row needs no vocabulary head.

    Args:
        read: ``(rows, L)``, not 0 on these tokens at the rows' end.

    Attributes:
        log_probs, entropies: ``(rows, L)`` of the last forward, with gradient; 0 where the loss does not read them.
    """

    def __init__(self, model: Callable, read: torch.Tensor):
        self._model, self._read = model, read
        self.log_probs = self.entropies = torch.zeros(read.shape, device=read.device)

    def __call__(self, labels: torch.Tensor, **inputs: Any) -> Any:
        length = self._read.size(1)
        labels = labels.clone()
        labels[:, -length:].masked_fill_(self._read == 0, -100)
        output = self._model(labels=labels, **inputs)
        self.log_probs, self.entropies = output.log_probs[:, -length:], output.entropy[:, -length:]
        return output


def as_causal(trainer: Trainer, model: torch.nn.Module) -> Callable:
    """The model, without masks where it needs none: see `padded_behind`."""
    return partial(padded_behind, model) if causal_is_enough(trainer) else model


def padded_behind(
    model: torch.nn.Module, labels: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: Any
) -> Any:
    """The model's output for rows ``(R, T)`` that are padded in front, computed with all padding behind and no mask, so
    that attention may take its fastest kernel and repeats no keys for grouped heads: no token sees what follows it."""
    column = torch.arange(input_ids.size(1), device=input_ids.device)
    first = attention_mask.argmax(dim=1, keepdim=True)
    forth, back = (column + first) % len(column), (column[:-1] - first) % len(column)
    output = model(input_ids=input_ids.gather(1, forth), labels=labels.gather(1, forth), **inputs)
    for name in ("log_probs", "entropy"):  # (R, T - 1): each position predicts the next token
        if (values := getattr(output, name, None)) is not None:
            values = values.gather(1, back.clamp(max=len(column) - 2))
            setattr(output, name, values.masked_fill(labels[:, 1:] == -100, 0.0))
    return output


def head_in_tiles(
    model: PreTrainedModel, pick: Callable[[torch.Tensor, int], torch.Tensor], views: int = 1
) -> AbstractContextManager[None]:
    """While a model's forward runs: of the vocabulary head's logits it gives what ``pick`` takes. They are made for
    `TILE` positions at a time, in the backward pass again: never for a whole batch.

    Args:
        pick: from logits ``(n, views, V)`` of positions, and the number of the first of them, to ``(n, K)``.
        views: rows, one after another, that are views of one response; the forward gives one row for all.
    """
    head: Any = model.get_output_embeddings()
    inner = head.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        shape, size = (len(hidden) // views, hidden.size(1)), max(TILE // views, 1)
        flat = hidden.unflatten(0, (shape[0], views)).transpose(1, 2).flatten(0, 1)
        tiles = [
            checkpoint(lambda part, first: pick(inner(part), first), part, number * size, use_reentrant=False)
            for number, part in enumerate(flat.split(size))
        ]
        return torch.cat(tiles).unflatten(0, shape)

    return temporarily(head, forward=forward)


def largest_logits(
    trainer: Trainer,
    ids: torch.Tensor,
    mask: torch.Tensor,
    length: int,
    count: int,
    views: int = 1,
    mix: Mix | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and values ``(rows / views, length, count)`` of the policy's largest logits that predict the last ``length``
    tokens, not divided by a temperature. See `ScoringModel.largest`."""
    found: list[torch.Tensor] = []

    def pick(logits: torch.Tensor, first: int) -> torch.Tensor:
        position = torch.arange(first, first + len(logits), device=logits.device)
        one = logits[:, 0] if mix is None else mix(position // (length + 1), logits)
        values, tokens = one.topk(count)
        found.append(tokens)
        return values

    policy = trainer.accelerator.unwrap_model(trainer.model)
    with trainer.accelerator.autocast(), head_in_tiles(policy, pick, views):
        values = trainer.model(input_ids=ids, attention_mask=mask, logits_to_keep=length + 1).logits[:, :-1]
    return torch.cat(found).unflatten(0, (len(ids) // views, length + 1))[:, :-1], values.float()


def live_logits(
    trainer: Trainer, model: torch.nn.Module, rows: dict[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """The current policy's logits of ``tokens`` ``(rows, L, K)`` along the rows' responses, with gradient; 0 where no
    row has an optimised token."""
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    read = (rows["completion_mask"] * rows["tool_mask"]).any(dim=0).nonzero().squeeze(1)
    wanted = tokens[:, read].flatten(0, 1)

    def pick(logits: torch.Tensor, first: int) -> torch.Tensor:
        return logits[:, 0].gather(-1, wanted[first : first + len(logits)])

    with trainer.accelerator.autocast(), head_in_tiles(trainer.accelerator.unwrap_model(model), pick):
        places = rows["prompt_ids"].size(1) - 1 + read
        found = model(input_ids=ids, attention_mask=mask, logits_to_keep=places).logits.float()
    return found.new_zeros(tokens.shape).index_copy(1, read, found)


def sampling(trainer: Trainer, temperature: float, max_tokens: int) -> AbstractContextManager[None]:
    """Generation with another temperature (0 decodes greedily) and token limit than the training rollouts'."""
    if trainer.use_vllm:
        return temporarily(trainer.vllm_generation, temperature=temperature, max_completion_length=max_tokens)
    greedy: dict[str, Any] = {"do_sample": False} if temperature == 0 else {"temperature": temperature}
    return temporarily(trainer.generation_config, **greedy, max_new_tokens=max_tokens)


def whole_on_each_process(args: GRPOConfig) -> None:
    """No ``device_map`` where there are several processes. TRL says so to transformers for DDP and DeepSpeed, but not
    for FSDP, whose policy and reference would be spread over all GPUs by each process, with hooks that break sharding.
    """
    if args.world_size > 1:
        args.model_init_kwargs = {**as_mapping(args.model_init_kwargs), "device_map": None}


@contextlib.contextmanager
def made_for_turns(args: AlignOPSDConfig, whole: bool) -> Generator[None]:
    """While TRL's part of a trainer is made. FSDP2 shards the reference as accelerate shards the policy, layer by layer
    and with the weights of rank 0 wherever the other ranks hold zeros; TRL would shard each rank's own copy, as one
    unit. TRL's own entropy bonus, a mean per micro-batch, stays off.

    Args:
        whole: the model is loaded by TRL, and has to be whole on each process.
    """
    if whole:
        whole_on_each_process(args)
    sharded = temporarily(grpo_trainer, prepare_fsdp=_shard_frozen)
    with sharded, engine_options(args.engine_options), temporarily(args, entropy_coef=0.0):
        yield


def engine_options(chosen: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """While a trainer is made: what a colocated vLLM's engine is made with, over what TRL gives it; `None` where there
    is none. TRL fixes how many responses are sampled at once to the trajectories of a round, and the tokens of a step
    to 4,096."""
    if chosen is None or not hasattr(vllm_generation, "LLM"):  # not installed: TRL says so
        return contextlib.nullcontext()
    engine, own = vllm_generation.LLM, chosen
    return temporarily(vllm_generation, LLM=lambda **options: engine(**{**options, **own}))


@contextlib.contextmanager
def awake(trainer: Trainer) -> Generator[None]:
    """With vLLM's sleep mode: the engine wakes once, takes the weights with the first generation, and sleeps again at
    the end. TRL puts it to sleep after each call, so that every turn of an episode would push the whole policy."""
    engine: Any = getattr(trainer, "vllm_generation", None)
    if not (trainer.use_vllm and trainer.vllm_mode == "colocate" and engine.enable_sleep_mode):
        yield
        return
    torch.cuda.empty_cache()
    engine.llm.wake_up()
    engine.enable_sleep_mode, engine._llm_weights_sleeping, trainer._last_loaded_step = False, False, -1
    try:
        yield
    finally:
        engine.llm.sleep(level=2)
        engine.enable_sleep_mode, engine._llm_weights_sleeping = True, True


def generate(trainer: Trainer, prompts: Sequence[Sequence[int]]) -> Responses:
    """One response per prompt through TRL's own path (transformers, continuous batching or vLLM). All processes must
    call it equally often and with lists of equal length."""
    if trainer.is_fsdp_enabled:  # what transformers' generate looks for, to go on until all processes have finished
        trainer.accelerator.unwrap_model(trainer.model)._is_fsdp_managed_module = True
        if trainer.use_vllm:
            strategies.reshard(trainer.model)
    with _without_ended_trackers(trainer):
        return Responses(*trainer._generate_single_turn(prompts, None, {}, num_generations=1))


def _without_ended_trackers(trainer: Trainer) -> AbstractContextManager[None]:
    """TRL times each generation and logs that; trackio raises where its run has not begun or has ended already, as in
    an evaluation after training."""
    given = trainer.args.report_to or ()
    if "trackio" in given:
        import trackio

        if trackio.context_vars.current_run.get() is None:
            return temporarily(trainer.args, report_to=[name for name in given if name != "trackio"])
    return contextlib.nullcontext()


def computes_in(trainer: Trainer) -> torch.dtype:
    """In which precision the policy's attention computes: autocast's, where it is on."""
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = trainer.accelerator.unwrap_model(trainer.model).dtype
    return autocast.get(trainer.accelerator.mixed_precision, dtype) if dtype == torch.float32 else dtype


def samples_plainly(trainer: Trainer) -> bool:
    """Whether responses come from the whole distribution of a model that is here and whole, so that `decoding.sample`
    may take the place of transformers' ``generate``."""
    if trainer.use_vllm or trainer.use_transformers_continuous_batching:
        return False
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or why_not_shared(trainer):
        return False
    config = trainer.generation_config
    return (
        config.do_sample
        and config.top_k in (None, 0)
        and config.top_p in (None, 1.0)
        and config.min_p in (None, 0.0)
        and config.repetition_penalty in (None, 1.0)
        and not trainer.args.generation_kwargs
        and not trainer.args.cache_implementation
    )


def join_servers(trainer: Trainer, addresses: Sequence[str]) -> None:
    """Joins the servers after the first, which TRL has joined, so that `push_weights` reaches all. A collective."""
    engine = trainer.vllm_generation
    engine.clients = [getattr(engine, "vllm_client", None)]
    for number, address in enumerate(addresses[1:], 1):
        client = None
        if trainer.accelerator.is_main_process:
            port = trainer.args.vllm_group_port + number
            client = VLLMClient(address, group_port=port, connection_timeout=trainer.args.vllm_server_timeout)
            client.init_communicator(device=trainer.accelerator.device)
        engine.clients.append(client)
    trainer.accelerator.wait_for_everyone()


def push_weights(trainer: Trainer) -> None:
    """Gives vLLM the policy's weights if an update has changed them, as TRL does before it generates. A collective.

    Raises:
        SamplerDown: on the first process, if a server does not take them.
    """
    if trainer.state.global_step == trainer._last_loaded_step:
        return
    if trainer.is_fsdp_enabled:
        strategies.reshard(trainer.model)
    engine, problems = trainer.vllm_generation, []
    for client in getattr(engine, "clients", [None]):
        if client is not None:
            engine.vllm_client = client
        with _walked_to_the_end(engine, problems if trainer.vllm_mode == "server" else None):
            engine.sync_weights()
    if problems:
        raise SamplerDown(f"vLLM's server did not take the weights ({problems[0]}); start it again and resume")
    trainer._last_loaded_step = trainer.state.global_step


@contextlib.contextmanager
def _walked_to_the_end(engine: Any, problems: list[Exception] | None) -> Generator[None]:
    """While weights are pushed: an error of the first process's client goes into a list after the process has passed
    all parameters, since gathering one is a collective. With `None` errors are raised."""
    passes: list[Any] = []
    inner = engine._iter_named_params

    def params() -> Any:
        passes.append(inner())
        return passes[-1]

    engine._iter_named_params = params
    try:
        yield
    except Exception as error:  # TRL raises plain ones
        if problems is None:
            raise
        for one in passes:
            for _ in one:
                pass
        problems.append(error)
    finally:
        del engine._iter_named_params


def sampling_options(trainer: Trainer, temperature: float, max_tokens: int) -> dict[str, Any]:
    """What TRL asks of vLLM for one response, under vLLM's names."""
    engine = trainer.vllm_generation
    return {
        "n": 1,
        "repetition_penalty": engine.repetition_penalty,
        "temperature": temperature,
        "top_p": engine.top_p,
        "top_k": engine.top_k,
        "min_p": engine.min_p or 0.0,
        "max_tokens": max_tokens,
        "logprobs": 0,
        **engine.generation_kwargs,
        **({"structured_outputs": {"regex": pattern}} if (pattern := engine.structured_outputs_regex) else {}),
    }


def stepping_sampler(trainer: Trainer, temperature: float, max_tokens: int) -> SteppingSampler:
    """The policy in a colocated engine, asked request by request."""
    options = sampling_options(trainer, temperature, max_tokens)
    if isinstance(options.get("structured_outputs"), dict):
        options["structured_outputs"] = vllm_generation.StructuredOutputsParams(**options["structured_outputs"])

    def parameters(seed: int) -> Any:
        chosen = vllm_generation.SamplingParams(**options | {"seed": seed})
        chosen.output_kind = type(chosen.output_kind).FINAL_ONLY
        return chosen

    return SteppingSampler(trainer.vllm_generation.llm.llm_engine, parameters, _read_output)


def _read_output(output: Any) -> Response:
    log_probs = vllm_generation.extract_logprobs([output])[0][0]
    return Response(list(output.outputs[0].token_ids), [one[0] for one in log_probs])


class EngineSampler:
    """The trained policy as a `rollout.BatchSampler` through TRL's own path: transformers or vLLM."""

    def __init__(self, trainer: Trainer, temperature: float, max_tokens: int):
        self._trainer, self._temperature, self._max_tokens = trainer, temperature, max_tokens

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        with sampling(self._trainer, self._temperature, self._max_tokens):
            return generate(self._trainer, prompts)


def loop_sampler(trainer: Trainer, temperature: float, max_tokens: int, prefixes: PrefixCache | None) -> LoopSampler:
    """The trained policy as a `rollout.BatchSampler` through the project's own loop, where it `samples_plainly`."""
    return LoopSampler(
        trainer.accelerator.unwrap_model(trainer.model),
        temperature,
        max_tokens,
        trainer.eos_token_ids,
        trainer.processing_class.pad_token_id,
        attention_of(trainer),
        trainer.args.scoring_tokens,
        prefixes,
        partial(_fitting, trainer, prefixes.room, max_tokens) if prefixes and prefixes.room.bounds_rollout else len,
        trainer.accelerator.autocast,  # around all steps: weights are rounded once, not at each token
    )


def slot_sampler(trainer: Trainer, temperature: float, max_tokens: int, prefixes: PrefixCache) -> SlotSampler:
    """The same loop as a `rollout.Sampler`, with which no response waits for another."""
    own = loop_sampler(trainer, temperature, max_tokens, prefixes)
    return SlotSampler(own.model, temperature, max_tokens, own.end_ids, prefixes, own.attention, own.rows, own.context)


def _token_bytes(trainer: Trainer) -> int:
    return token_bytes(_text_config(trainer), computes_in(trainer).itemsize)


def _room(trainer: Trainer, caches: int = 1) -> Room:
    """What there is now, before a round, for each of several caches."""
    longest = trainer.args.max_prompt_length + trainer.args.max_completion_length
    free = free_memory(trainer.accelerator.device)
    return room(free, trainer.args.kv_memory_share / caches, longest * _token_bytes(trainer))


def free_memory(device: torch.device) -> int | None:
    """Bytes of a GPU that nothing holds, torch's own cache among them; `None` for other devices."""
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def _fitting(trainer: Trainer, kept: Room, limit: int, prompts: Sequence[Sequence[int]]) -> int:
    """How many of the prompts, with responses of ``limit`` tokens, have room in a batch, at least one."""
    longest = max(map(len, prompts), default=0) + limit
    return max(kept.batch // (longest * _token_bytes(trainer)), 1)


@contextlib.contextmanager
def kept_prefixes(trainer: Trainer, caches: int = 1) -> Generator[PrefixCache | None]:
    """While the weights stay as they are: what the policy made of a prompt holds for others. `None` where the policy
    does not sample in this process.

    Args:
        caches: that share the device's room: 2 where the teacher has other weights.
    """
    if not samples_plainly(trainer):
        yield None
        return
    model, pad_id = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class.pad_token_id
    with _without_checkpointing(trainer):
        budget, dtype = trainer.args.scoring_tokens, computes_in(trainer)
        yield PrefixCache(model, pad_id, attention_of(trainer), budget, dtype, _room(trainer, caches))


def rows_at_once(
    trainer: Trainer,
    prompts: Sequence[Sequence[int]],
    limit: int,
    least: int,
    prefixes: PrefixCache | None = None,
) -> int:
    """How many of the prompts are sampled at a time: all of them with vLLM, ``least`` with transformers'
    ``generate``, and what has room in the cache of `decoding.sample`.

    Args:
        limit: tokens of a response at most.
        prefixes: of the round, which knows how much room it has.
    """
    if trainer.use_vllm:
        return len(prompts)
    if not (trainer.model.training and samples_plainly(trainer)):
        return least
    kept = prefixes.room if prefixes else _room(trainer)
    fitting = _fitting(trainer, kept, limit, prompts)
    return fitting if kept.bounds_rollout else max(least, fitting)


def scores_as_sampled(trainer: Trainer) -> bool:
    """Whether scoring would give the log-probs that `decoding.sample` kept, up to float32 rounding: not where sampling
    and scoring round to a shorter format, each in its own order."""
    whole = trainer.accelerator.mixed_precision == "no"
    return whole and trainer.accelerator.unwrap_model(trainer.model).dtype == torch.float32


def needs_old_log_probs(trainer: Trainer) -> bool:
    """Whether the update must be told the snapshot's log-probs (several optimiser steps per rollout, or vLLM)."""
    every = trainer.args.steps_per_generation * trainer.num_iterations
    return trainer.args.gradient_accumulation_steps % every != 0 or corrects_sampling(trainer)


def corrects_sampling(trainer: Trainer) -> bool:
    return trainer.use_vllm and trainer.vllm_importance_sampling_correction


def sampling_ratio(trainer: Trainer, difference: torch.Tensor) -> torch.Tensor:
    """TRL's importance-sampling correction from ``(R, T)`` masked differences of trainer and sampler log-probs; its
    four modes, where a sequence is one turn. A NaN difference (no sampler log-prob) corrects nothing."""
    difference = torch.nan_to_num(difference, nan=0.0)
    mode, low, high = (
        trainer.vllm_importance_sampling_mode,
        trainer.vllm_importance_sampling_clip_min,
        trainer.vllm_importance_sampling_clip_max,
    )
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high)
    outside = torch.zeros_like(ratio, dtype=torch.bool)
    if low is not None:
        outside |= ratio < low
    if high is not None:
        outside |= ratio > high
    return ratio.masked_fill(outside, 0.0)


def sampling_metrics(difference: torch.Tensor, ratio: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """How far the sampler's log-probs are from the trainer's, under the names that TRL logs; empty without tokens.

    Args:
        difference: ``(R, T)`` trainer minus sampler, NaN where the sampler gave none.
        ratio: of `sampling_ratio`, ``(R, T)`` or ``(R, 1)``.
        mask: ``(R, T)`` bool, the optimised tokens.
    """
    known = difference[mask & ~difference.isnan()].abs()
    if not len(known):
        return {}
    ratios = ratio[mask.any(dim=1)] if ratio.size(1) == 1 else ratio[mask]
    return {
        "sampling/sampling_logp_difference/mean": known.mean().item(),
        "sampling/sampling_logp_difference/max": known.max().item(),
        "sampling/importance_sampling_ratio/min": ratios.min().item(),
        "sampling/importance_sampling_ratio/mean": ratios.mean().item(),
        "sampling/importance_sampling_ratio/max": ratios.max().item(),
    }


def filled_up(trainer: Trainer, rows: int) -> AbstractContextManager[None]:
    """TRL's loss gathers a number a row over all processes, for its clip ratios. A sub-chunk has other numbers of rows
    on each process, so they are filled up with NaN, which the smallest and the largest that TRL takes pass over.

    Args:
        rows: the most that a sub-chunk of any process has.
    """
    inner = trainer.accelerator.gather

    def gather(values: torch.Tensor) -> torch.Tensor:
        return inner(torch.nn.functional.pad(values, (0, rows - len(values)), value=float("nan")))

    return temporarily(trainer.accelerator, gather=gather)


def token_normalizer(trainer: Trainer, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What TRL's token-mean losses divide a process's sum by, in training."""
    tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
    return tokens * trainer.current_gradient_accumulation_steps / trainer.args.steps_per_generation


def _shard_frozen(model: torch.nn.Module, accelerator: Accelerator) -> torch.nn.Module:
    strategies.refuse_unproven(accelerator)
    strategies.keep_output_precision(accelerator)
    return fsdp2_prepare_model(accelerator, model.requires_grad_(False)).eval()


def rewards(
    trainer: Trainer,
    rows: list[dict[str, Any]],
    prompts: list[Any],
    completions: list[Any],
    ids: list[list[int]],
    environments: list[Any] | None = None,
) -> torch.Tensor:
    """``(trajectories of all processes, functions)`` through TRL's own path, NaN where a function gave none.

    Args:
        environments: what TRL hands to functions that ask for them.
    """
    if environments is not None:
        trainer.environments = environments
    return trainer._calculate_rewards(rows, prompts, completions, ids)


def sampling_columns(
    trainer: Trainer, batch: TurnBatch, log: Callable[[Mapping[str, float]], Any]
) -> dict[str, torch.Tensor]:
    """The sampler's own log-probs and TRL's correction for them, as columns of the rows; none where no engine samples.

    Args:
        log: is told how far they are from the trainer's.
    """
    if not trainer.use_vllm:
        return {}
    sampled = sampling_log_probs(batch.turns, batch.policy_mask.size(1), trainer.accelerator.device)
    columns = {"sampling_per_token_logps": sampled}
    if corrects_sampling(trainer):
        assert batch.student_log_probs is not None, "`needs_old_log_probs` asks for them"
        difference = (batch.student_log_probs - sampled) * batch.policy_mask
        ratio = columns["importance_sampling_ratio"] = sampling_ratio(trainer, difference)
        log(sampling_metrics(difference, ratio, batch.policy_mask))
    return columns


def policy_loss(
    trainer: Trainer, model: torch.nn.Module, rows: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """TRL's loss, and the log-probs and entropies ``(rows, L)`` of its own forward, with gradient."""
    watched = WatchedModel(as_causal(trainer, model), rows["completion_mask"] * rows["tool_mask"])
    with head_on_labels(trainer.accelerator.device):
        loss = trainer._compute_loss(watched, rows)
    return loss, watched.log_probs, watched.entropies


class TrainerLog:
    """TRL's log as a `training.recorder.Log`: numbers since the last line, and the table of completions."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def value(self, mode: str, name: str, value: float) -> None:
        self._trainer._metrics[mode][name].append(value)

    def samples(self, column: str, values: list[Any]) -> None:
        log: Any = self._trainer._logs
        log[column].extend(values)

    def reward_samples(self, name: str, values: list[float]) -> None:
        log: Any = self._trainer._logs
        log["rewards"][name].extend(values)


@contextlib.contextmanager
def loaded_whole() -> Generator[None]:
    """``from_pretrained`` as in a run of one process. Else, off local rank 0, ``fsdp_cpu_ram_efficient_loading`` fills
    each model with zeros, which only the policy gets replaced later; and ZeRO-3 splits each model into shards that
    nobody gathers."""
    efficient, reference = os.environ.get(_EFFICIENT), deepspeed._hf_deepspeed_config_weak_ref
    config = reference() if reference is not None else None
    os.environ[_EFFICIENT] = "false"
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        os.environ.pop(_EFFICIENT)
        if efficient is not None:
            os.environ[_EFFICIENT] = efficient
        if config is not None:
            deepspeed.set_hf_deepspeed_config(config)
