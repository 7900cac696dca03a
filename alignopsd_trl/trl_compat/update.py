"""What of TRL an update goes through: its loss, its reward functions, its correction for samplers and its log."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from alignopsd_trl.patched import patched
from alignopsd_trl.scoring.sampled import sampling_log_probs
from alignopsd_trl.trl_compat.head import Body, WatchedModel, as_causal, head_in_tiles, head_on_labels, moved_by
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat import Trainer


class PolicyLoss(NamedTuple):
    """TRL's loss, and what its own forward gave, with gradient.

    Attributes:
        log_probs, entropies: ``(rows, L)``.
        logits: ``(rows, L, K)`` of chosen tokens, 0 where no row has an optimised token; `None` if none were chosen.
    """

    loss: torch.Tensor
    log_probs: torch.Tensor
    entropies: torch.Tensor
    logits: torch.Tensor | None


def policy_loss(
    trainer: Trainer, model: torch.nn.Module, rows: dict[str, torch.Tensor], tokens: torch.Tensor | None = None
) -> PolicyLoss:
    """TRL's loss of rows.

    Args:
        tokens: ``(rows, L, K)``, whose logits are wanted along the rows' responses.
    """
    watched = WatchedModel(as_causal(trainer, model), rows["completion_mask"] * rows["tool_mask"])
    body = Body(trainer.accelerator.unwrap_model(model))
    kept = contextlib.nullcontext() if tokens is None else body.watched()
    with head_on_labels(trainer.accelerator.device), kept:
        loss = trainer._compute_loss(watched, rows)
    logits = None if tokens is None else _logits(trainer, model, body, rows, tokens)
    return PolicyLoss(loss, watched.log_probs, watched.entropies, logits)


def _logits(
    trainer: Trainer, model: torch.nn.Module, body: Body, rows: dict[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """The model's forward again, without its body: whatever it does to its head's logits is done to these."""
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    read = (rows["completion_mask"] * rows["tool_mask"]).any(dim=0).nonzero().squeeze(1)
    places = (rows["prompt_ids"].size(1) - 1 + read - moved_by(trainer, mask)) % ids.size(1)
    wanted = tokens[:, read].flatten(0, 1)

    def pick(logits: torch.Tensor, first: int) -> torch.Tensor:
        return logits[:, 0].gather(-1, wanted[first : first + len(logits)])

    tiled = head_in_tiles(trainer.accelerator.unwrap_model(model), pick)
    with trainer.accelerator.autocast(), tiled, body.replayed(places):
        found = model(input_ids=ids, attention_mask=mask).logits.float()
    return found.new_zeros(tokens.shape).index_copy(1, read, found)


def filled_up(trainer: Trainer, rows: int) -> AbstractContextManager[None]:
    """TRL's loss gathers a number a row over all processes, for its clip ratios. A sub-chunk has other numbers of rows
    on each process, so they are filled up with NaN, which the smallest and the largest that TRL takes pass over.

    Args:
        rows: the most that a sub-chunk of any process has.
    """
    inner = trainer.accelerator.gather

    def gather(values: torch.Tensor) -> torch.Tensor:
        return inner(torch.nn.functional.pad(values, (0, rows - len(values)), value=float("nan")))

    return patched(trainer.accelerator, gather=gather)


def token_normalizer(trainer: Trainer, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What TRL's token-mean losses divide a process's sum by, in training."""
    tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
    return tokens * trainer.current_gradient_accumulation_steps / trainer.args.steps_per_generation


def needs_old_log_probs(trainer: Trainer) -> bool:
    """Whether the update must be told the snapshot's log-probs (several optimiser steps per rollout, or vLLM)."""
    every = trainer.args.steps_per_generation * trainer.num_iterations
    return trainer.args.gradient_accumulation_steps % every != 0 or corrects_sampling(trainer)


def corrects_sampling(trainer: Trainer) -> bool:
    return trainer.use_vllm and trainer.vllm_importance_sampling_correction


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


def sampling_ratio(trainer: Trainer, difference: torch.Tensor) -> torch.Tensor:
    """TRL's importance-sampling correction from ``(R, T)`` masked differences of trainer and sampler log-probs; its
    four modes, where a sequence is one turn. A NaN difference (no sampler log-prob) corrects nothing."""
    difference = torch.nan_to_num(difference, nan=0.0)
    mode, low, high = (
        trainer.vllm_importance_sampling_mode,
        trainer.vllm_importance_sampling_clip_min or 0.0,
        trainer.vllm_importance_sampling_clip_max,
    )
    ratio = torch.exp(difference.sum(dim=-1, keepdim=True) if mode.startswith("sequence") else difference)
    clipped = ratio.clamp(low, math.inf if high is None else high)
    return clipped if mode.endswith("truncate") else ratio.masked_fill(clipped != ratio, 0.0)


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


def rewards(
    trainer: Trainer,
    rows: list[dict[str, Any]],
    prompts: list[Any],
    completions: list[Any],
    ids: list[list[int]],
    environments: list[Any] | None,
) -> torch.Tensor:
    """``(trajectories of all processes, functions)`` through TRL's own path, NaN where a function gave none.

    Args:
        environments: what TRL hands to functions that ask for them; `None` where there are none.
    """
    if environments is not None:
        trainer.environments = environments
    return trainer._calculate_rewards(rows, prompts, completions, ids)


class TrainerLog:
    """TRL's log: numbers since its last line, and the table of completions."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def value(self, mode: str, name: str, value: float) -> None:
        """Adds a number to the next line of ``train`` or ``eval``, which prints means."""
        self._trainer._metrics[mode][name].append(value)

    def samples(self, column: str, values: list[Any]) -> None:
        """Extends a column of the table: ``prompt``, ``completion`` or ``advantages``."""
        log: Any = self._trainer._logs
        log[column].extend(values)

    def reward_samples(self, name: str, values: list[float]) -> None:
        """Extends the column of a reward function."""
        log: Any = self._trainer._logs
        log["rewards"][name].extend(values)
