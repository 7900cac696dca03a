"""Several responses behind one prompt in one row: one forward through the wrapped model encodes the prompt once.

    ids       p0 p1 .. pP-2 | pP-1 r0 r1 .. | pP-1 s0 s1 ..
    labels     -  -  ..  -  |  r0  r1 r2 .. |  s0  s1 s2 ..
    segment    0  0  ..  0  |   1   1  1 .. |   2   2  2 ..

A token sees the prompt and what precedes it in its own segment; positions go on from the prompt in every segment. The
prompt's last token predicts the first token of each response, so every segment begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

PROVEN = ("llama", "qwen2", "qwen3")
"""Model types whose packed scores are tested against plain ones."""


def why_plain(config: Any, attention: str) -> str | None:
    """Why a model's prompts can't be shared in packed rows, or ``None`` if they can.

    Args:
        config: the model's text config.
        attention: name of its attention implementation.
    """
    if config.model_type not in PROVEN:
        return f"model_type={config.model_type!r} is none of {', '.join(PROVEN)}"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"it has layers of {', '.join(sorted(kinds - {'full_attention'}))}"
    if attention not in ("sdpa", "eager"):
        return f"attn_implementation={attention!r} takes no mask of its own; 'sdpa' and 'eager' do"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        return f"its rope_type={rope!r} depends on the length of the row"
    return None


@dataclass(frozen=True)
class Packed:
    """Rows of prompts with their responses, ``T`` tokens at most.

    Args:
        ids, position (`torch.Tensor`):
            ``(R, T)`` int64.
        labels (`torch.Tensor`):
            ``(R, T)`` int64, the token that each position predicts, -100 where none is scored.
        segment (`torch.Tensor`):
            ``(R, T)`` int64, 0 in the prompt, 1, 2, ... in the responses, -1 in the padding.
    """

    ids: torch.Tensor
    position: torch.Tensor
    labels: torch.Tensor
    segment: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]], pad_id: int) -> Packed:
        """Packs pairs of a prompt, at least one token long, and its responses."""
        columns: tuple[list[list[int]], ...] = ([], [], [], [])
        width = max(len(prompt) - 1 + sum(map(len, responses)) for prompt, responses in rows)
        for prompt, responses in rows:
            start = len(prompt) - 1
            row = [list(prompt[:-1]), list(range(start)), [-100] * start, [0] * start]
            for number, response in enumerate(responses, 1):
                row[0] += [prompt[-1], *response[:-1]] if response else []
                row[1] += range(start, start + len(response))
                row[2] += response
                row[3] += [number] * len(response)
            for column, values, padding in zip(columns, row, (pad_id, 0, -100, -1), strict=True):
                column.append([*values, *[padding] * (width - len(values))])
        return cls(*(torch.tensor(column, dtype=torch.int64).view(len(rows), width) for column in columns))

    def to(self, device: torch.device) -> Packed:
        return Packed(*(value.to(device) for value in (self.ids, self.position, self.labels, self.segment)))

    def mask(self) -> torch.Tensor:
        """``(R, 1, T, T)`` bool, which key each query sees. Padding sees the padding before it, for want of anything
        else."""
        query, key = self.segment.unsqueeze(2), self.segment.unsqueeze(1)
        width = self.ids.size(1)
        earlier = torch.ones((width, width), dtype=torch.bool, device=self.ids.device).tril()
        return (earlier & ((query == key) | ((key == 0) & (query > 0)))).unsqueeze(1)


def as_attention_mask(visible: torch.Tensor, attention: str) -> torch.Tensor:
    """A mask ``(R, 1, T, T)`` of what is visible as the attention implementation takes it."""
    if attention != "eager":
        return visible
    return torch.zeros_like(visible, dtype=torch.float32).masked_fill_(~visible, torch.finfo(torch.float32).min)
