"""The log-probs that a sampler kept of its own tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from alignopsd_trl.scoring.ragged import Ragged
from alignopsd_trl.turns import Turn


def sampling_log_probs(turns: Sequence[Turn], width: int, device: torch.device) -> torch.Tensor:
    """Returns the sampler's log-probs, ``(M, width)`` float32, NaN where it gave none."""
    values = Ragged.of([_numbers(turn) for turn in turns], dtype=torch.float32)
    padded, _ = values.padded(torch.arange(len(turns)), 0.0, "right")
    padded = torch.nn.functional.pad(padded, (0, max(width - padded.size(1), 0)))
    return padded[:, :width].to(device)


def _numbers(turn: Turn) -> list[float]:
    if turn.sampling_log_probs is None:
        return [float("nan")] * len(turn.response_ids)
    return [float("nan") if value is None else value for value in turn.sampling_log_probs]
