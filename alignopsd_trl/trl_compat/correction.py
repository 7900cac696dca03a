"""TRL's correction for a sampler whose log-probs differ from the trainer's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat import Trainer


def sampling_ratio(trainer: Trainer, difference: torch.Tensor) -> torch.Tensor:
    """Returns TRL's importance-sampling correction, in its four modes, from ``(R, T)`` masked differences of trainer
    and sampler log-probs. A sequence is one turn. A NaN difference (no sampler log-prob) corrects nothing."""
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
