"""The trained policy, TRL's functions on it, and TRL's log, as the trainer's parts use them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from alignopsd_trl.common import strategies
from alignopsd_trl.common.patched import patched
from alignopsd_trl.scoring.model import Body
from alignopsd_trl.scoring.trl_scoring import WatchedModel, head_on_labels, logits_at, padded_behind
from alignopsd_trl.scoring.trl_trainer import policy_of
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainerState

    from alignopsd_trl.scoring.trl_trainer import Trainer

Rows = dict[str, torch.Tensor]


class PolicyLoss(NamedTuple):
    """TRL's loss and the outputs of its forward, with gradient.

    Attributes:
        log_probs, entropies: ``(rows, L)``.
        logits: ``(rows, L, K)`` of chosen tokens, 0 where no row has an optimised token; `None` if none were chosen.
    """

    loss: torch.Tensor
    log_probs: torch.Tensor
    entropies: torch.Tensor
    logits: torch.Tensor | None


class TrainedPolicy:
    """A trainer's policy as the trainer's parts see it. Tests of a part may pass a stand-in.

    Args:
        trainer: the trainer; its values are read at the time of a call.
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    @property
    def model(self) -> PreTrainedModel:
        return self._trainer.model

    @property
    def state(self) -> TrainerState:
        """The trainer's state, which counts updates; TRL passes it to reward functions."""
        return self._trainer.state

    @property
    def sampled_by_engine(self) -> bool:
        """Whether vLLM samples, with log-probs of its own."""
        return self._trainer.use_vllm

    @property
    def computes_exactly(self) -> bool:
        """Whether the forward is float32 throughout."""
        return strategies.computes_exactly(self._trainer.accelerator, self.model)

    @property
    def scores_as_sampled(self) -> bool:
        """Whether scoring gives the log-probs of a `LoopSampler`, up to float32 rounding. In shorter formats sampling
        and scoring round in different orders."""
        trainer = self._trainer
        whole = trainer.accelerator.mixed_precision == "no" and strategies.is_float32(policy_of(trainer))
        return whole and not trainer.use_vllm

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether the update needs the snapshot's log-probs (several optimiser steps per rollout, or vLLM)."""
        args = self._trainer.args
        every = args.steps_per_generation * self._trainer.num_iterations
        return args.gradient_accumulation_steps % every != 0 or self._corrects_sampling

    @property
    def _corrects_sampling(self) -> bool:
        return self._trainer.use_vllm and self._trainer.vllm_importance_sampling_correction

    def gradient_norm(self) -> float | None:
        """Returns the gradients' norm; `None` where a loss scaler skips bad steps by itself."""
        return strategies.gradient_norm(self._trainer.accelerator, self._trainer.model_wrapped)

    def save_checkpoint(self) -> None:
        self._trainer._save_checkpoint(self.model, trial=None)

    def sampling_columns(self, batch: TurnBatch, log: Callable[[Mapping[str, float]], Any]) -> Rows:
        """Returns the sampler's own log-probs and TRL's correction for them, as columns; empty where no engine samples.

        Args:
            log: receives the figures of `sampling_metrics`.
        """
        if not self.sampled_by_engine:
            return {}
        sampled = batch.sampling_log_probs()
        columns = {"sampling_per_token_logps": sampled}
        if self._corrects_sampling:
            assert batch.student_log_probs is not None, "`needs_old_log_probs` asks for them"
            difference = (batch.student_log_probs - sampled) * batch.policy_mask
            ratio = columns["importance_sampling_ratio"] = sampling_ratio(self._trainer, difference)
            log(sampling_metrics(difference, ratio, batch.policy_mask))
        return columns

    def loss(self, model: torch.nn.Module, rows: Rows, tokens: torch.Tensor | None = None) -> PolicyLoss:
        """Computes TRL's loss over rows.

        Args:
            model: the model as the trainer wrapped it.
            tokens: ``(rows, L, K)`` ids whose logits are returned along the rows' responses.
        """
        trainer = self._trainer
        watched = WatchedModel(partial(padded_behind, trainer, model), rows["completion_mask"] * rows["tool_mask"])
        body = Body(trainer.accelerator.unwrap_model(model))
        kept = contextlib.nullcontext() if tokens is None else body.watched()
        with head_on_labels(trainer.accelerator.device), kept:
            loss = trainer._compute_loss(watched, rows)
        logits = None if tokens is None else self._logits(model, body, rows, tokens)
        return PolicyLoss(loss, watched.log_probs, watched.entropies, logits)

    def _logits(self, model: torch.nn.Module, body: Body, rows: Rows, tokens: torch.Tensor) -> torch.Tensor:
        """Runs the model's forward again without its body, so that these logits get all the model's changes after the
        head."""
        trainer = self._trainer
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        read = (rows["completion_mask"] * rows["tool_mask"]).any(dim=0).nonzero().squeeze(1)
        places = (rows["prompt_ids"].size(1) - 1 + read - mask.argmax(dim=1, keepdim=True)) % ids.size(1)
        tiled = logits_at(trainer.accelerator.unwrap_model(model), tokens[:, read].flatten(0, 1))
        states = body.states.gather(1, places.unsqueeze(-1).expand(-1, -1, body.states.size(-1)))
        with trainer.accelerator.autocast(), tiled, body.replayed(states):
            found = model(input_ids=ids, attention_mask=mask).logits.float()
        return found.new_zeros(tokens.shape).index_copy(1, read, found)

    def filled_up(self, rows: int) -> AbstractContextManager[None]:
        """Pads with NaN the numbers, one per row, that TRL's loss gathers for its clip ratios, since processes may have
        different numbers of rows. TRL's minimum and maximum ignore NaN.

        Args:
            rows: maximum of a sub-chunk's rows over all processes.
        """
        inner = self._trainer.accelerator.gather

        def gather(values: torch.Tensor) -> torch.Tensor:
            return inner(torch.nn.functional.pad(values, (0, rows - len(values)), value=float("nan")))

        return patched(self._trainer.accelerator, gather=gather)

    def token_normalizer(self, rows: Rows) -> torch.Tensor:
        """Returns the divisor of a process's sum in TRL's token-mean losses in training."""
        trainer = self._trainer
        tokens = rows["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        return tokens * trainer.current_gradient_accumulation_steps / trainer.args.steps_per_generation

    def rewards(
        self,
        rows: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        ids: list[list[int]],
        environments: list[Any] | None,
    ) -> torch.Tensor:
        """Calls the reward functions through TRL's own path and returns ``(trajectories of all processes, functions)``,
        NaN where a function returns none.

        Args:
            environments: passed by TRL to functions with such an argument; `None` without environments.
        """
        if environments is not None:
            self._trainer.environments = environments
        return self._trainer._calculate_rewards(rows, prompts, completions, ids)


class TrainerLog:
    """Writes to TRL's log: numbers for its next line, and columns of its table of completions."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def value(self, name: str, value: float) -> None:
        self._trainer._metrics["train"][name].append(value)

    def samples(self, column: str, values: list[Any]) -> None:
        """Extends a column of the table: ``prompt``, ``completion`` or ``advantages``."""
        log: Any = self._trainer._logs
        log[column].extend(values)

    def reward_samples(self, name: str, values: list[float]) -> None:
        log: Any = self._trainer._logs
        log["rewards"][name].extend(values)


def sampling_ratio(trainer: Trainer, difference: torch.Tensor) -> torch.Tensor:
    """Returns TRL's importance-sampling correction, in its four modes, from ``(R, T)`` masked differences of trainer
    and sampler log-probs. A sequence is one turn. A NaN difference (no sampler log-prob) corrects nothing."""
    difference = torch.nan_to_num(difference, nan=0.0)
    mode, low = trainer.vllm_importance_sampling_mode, trainer.vllm_importance_sampling_clip_min or 0.0
    high = trainer.vllm_importance_sampling_clip_max
    ratio = torch.exp(difference.sum(dim=-1, keepdim=True) if mode.startswith("sequence") else difference)
    clipped = ratio.clamp(low, math.inf if high is None else high)
    return clipped if mode.endswith("truncate") else ratio.masked_fill(clipped != ratio, 0.0)


def sampling_metrics(difference: torch.Tensor, ratio: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Returns differences of the sampler's log-probs from the trainer's, under TRL's names; empty without tokens.

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
