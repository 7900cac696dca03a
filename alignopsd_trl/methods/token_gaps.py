"""Gaps of single tokens as columns of the records."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from alignopsd_trl.turns import TurnBatch


@torch.no_grad()
def token_gaps(batch: TurnBatch, **gaps: torch.Tensor | None) -> dict[str, list[Any]]:
    """Makes the columns ``token_<name>_gaps`` of a trace.

    Args:
        batch: M turns.
        gaps: ``(M, L)`` log-prob of each sampled token under a privileged view less the student's, in nats.

    Returns:
        For each gap, M float16 arrays with a value for each token of the response; `None` for a turn that was not
        scored or is not optimised. float16 keeps three digits of a gap below 2,048 nats.
    """
    return {f"token_{name}_gaps": _rows(gap, batch.scored_mask) for name, gap in gaps.items() if gap is not None}


def _rows(gap: torch.Tensor, mask: torch.Tensor) -> list[np.ndarray | None]:
    lengths = mask.sum(1).tolist()
    flat = gap[mask].half().cpu().numpy()
    parts = np.split(flat, np.cumsum(lengths)[:-1]) if lengths else []
    return [part if length else None for part, length in zip(parts, lengths, strict=True)]
