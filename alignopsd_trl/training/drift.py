"""Measures how far the optimiser steps of a round move the policy from the one that sampled it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.training.recorder import Recorder


def drift_sums(difference: torch.Tensor, mask: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Returns ``(5,)``: tokens, sum of ratios, sum of their squares, sum of the k3 estimates of KL(sampler || policy),
    and ratios outside [1 - low, 1 + high]. The host does not wait for the result.

    Args:
        difference: ``(R, L)`` log-probs of the policy less those of the sampler.
        mask: ``(R, L)`` bool, the optimised tokens.
    """
    difference = difference.float().masked_fill(~mask, 0.0).clamp(-20.0, 20.0)  # squares of ratios stay finite
    ratio = difference.exp()
    outside = (ratio < 1 - low) | (ratio > 1 + high)
    columns = (torch.ones_like(ratio), ratio, ratio.square(), ratio - 1 - difference, outside)
    return torch.stack([(column * mask).sum() for column in columns])


def drift_numbers(sums: torch.Tensor) -> dict[str, float]:
    """Returns means over tokens, and the effective sample size as a share: (sum of ratios)^2 / (tokens x sum of
    squares)."""
    tokens, ratio, square, kl, outside = sums.double().tolist()
    if not tokens:
        return {}
    return {
        "ratio": ratio / tokens,
        "outside_clip": outside / tokens,
        "kl": kl / tokens,
        "ess": ratio**2 / (tokens * square),
    }


class Drift(TrainerCallback):
    """Logs ``drift/step_<n>/...`` for the n-th optimiser step of each round, where a round has several.

    Args:
        config: has the clip range and the steps of a round.
        processes: all processes, whose tokens are counted together.
        recorder: logs the numbers.
    """

    def __init__(self, config: AlignOPSDConfig, processes: ProcessGroup, recorder: Recorder):
        self._processes, self._recorder, self._steps = processes, recorder, config.steps_per_round
        self._low, self._high = config.epsilon, config.epsilon_high or config.epsilon
        self._sums: torch.Tensor | None = None

    @torch.no_grad()
    def saw(self, rows: Mapping[str, torch.Tensor], log_probs: torch.Tensor) -> None:
        """Counts the optimised tokens of a forward of the update.

        Args:
            rows: of the update, with the sampler's log-probs where the update has them.
            log_probs: ``(R, L)`` of the policy.
        """
        old = rows.get("old_per_token_logps")
        if old is None or self._steps <= 1:
            return
        mask = (rows["completion_mask"] * rows["tool_mask"]).bool()
        sums = drift_sums(log_probs - old, mask, self._low, self._high)
        self._sums = sums if self._sums is None else self._sums + sums

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        if self._sums is None:
            return
        found = drift_numbers(self._processes.total(self._sums))
        number, self._sums = int((state.global_step - 1) % self._steps) + 1, None
        self._recorder.metrics("train", {f"drift/step_{number}/{name}": value for name, value in found.items()})
