"""Turn rows: the batch dict that TRL's loss reads, one row a turn, and its sub-chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from alignopsd_trl.policy.ragged import Ragged
from alignopsd_trl.turns import Turn, TurnBatch

TARGET = "target/"
VOCABULARY = "vocabulary_ids"
_DUMMY = {"ref_per_token_logps": -1e4}
"""Columns that are not 0 in dummy rows. A reference of 0 would make exp(reference - log-prob) of an unlikely dummy
token infinite, and infinity times the mask's 0 is no number."""


def collate_rows(
    batch: TurnBatch, per_token: dict[str, torch.Tensor], rows: int, pad_id: int, end_id: int
) -> dict[str, torch.Tensor]:
    """Prompts, responses and per-token columns as tensors of ``rows`` rows.

    The M turns come first; the rest are dummy rows (one prompt token, one end token, loss mask 0) that only keep all
    processes at the same number of forwards.

    Args:
        per_token: ``(M, L)`` or ``(M, L, K)`` columns, carried over with zeros (a reference: -1e4) in the dummy rows.

    Returns:
        ``prompt_ids, prompt_mask`` ``(rows, P)`` left-padded, ``completion_ids, completion_mask, tool_mask`` and the
        columns ``(rows, L)``.
    """
    dummies = rows - len(batch)
    device = batch.response_ids.device
    prompts = Ragged.of([turn.prompt_ids for turn in batch.turns] + [[end_id]] * dummies)
    responses = Ragged.of([turn.response_ids for turn in batch.turns] + [[end_id]] * dummies)
    everything = torch.arange(rows)
    prompt_ids, prompt_mask = prompts.padded(everything, pad_id, "left")
    response_ids, response_mask = responses.padded(everything, pad_id, "right")
    result = {
        "prompt_ids": prompt_ids.to(device),
        "prompt_mask": prompt_mask.to(device, torch.int64),
        "completion_ids": response_ids.to(device),
        "completion_mask": response_mask.to(device, torch.int64),
        "tool_mask": _with_dummies(batch.policy_mask.to(torch.int64), dummies),
    }
    return result | {name: _with_dummies(column, dummies, _DUMMY.get(name, 0)) for name, column in per_token.items()}


def _with_dummies(column: torch.Tensor, dummies: int, value: float = 0) -> torch.Tensor:
    return torch.cat([column, column.new_full((dummies, *column.shape[1:]), value)]) if dummies else column


def sampling_log_probs(turns: Sequence[Turn], width: int, device: torch.device) -> torch.Tensor:
    """The sampler's log-probs ``(M, width)`` float32, NaN where it gave none."""
    values = Ragged.of([_numbers(turn) for turn in turns], dtype=torch.float32)
    padded, _ = values.padded(torch.arange(len(turns)), 0.0, "right")
    padded = torch.nn.functional.pad(padded, (0, max(width - padded.size(1), 0)))
    return padded[:, :width].to(device)


def _numbers(turn: Turn) -> list[float]:
    if turn.sampling_log_probs is None:
        return [float("nan")] * len(turn.response_ids)
    return [float("nan") if value is None else value for value in turn.sampling_log_probs]


def split_and_trim(inputs: dict[str, torch.Tensor], size: int) -> list[dict[str, torch.Tensor]]:
    """Sub-chunks of at most ``size`` rows, each trimmed to its own longest prompt and response. Scalars are copied;
    ``(rows, 1)`` columns keep their width."""
    rows, width = inputs["completion_ids"].shape
    chunks = []
    for start in range(0, rows, size):
        part = {name: value if value.dim() == 0 else value[start : start + size] for name, value in inputs.items()}
        prompt = max(int(part["prompt_mask"].sum(1).max()), 1)
        response = max(int(part["completion_mask"].sum(1).max()), 1)
        for name, value in part.items():
            if name in ("prompt_ids", "prompt_mask"):
                part[name] = value[:, value.size(1) - prompt :]
            elif value.dim() > 1 and value.size(1) == width:
                part[name] = value[:, :response]
        chunks.append(part)
    return chunks
