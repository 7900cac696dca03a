"""Sequences of different lengths as one flat tensor, and padded views of any selection of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch


@dataclass(frozen=True)
class Ragged:
    """n sequences of different lengths, such as token ids, without padding.

    Args:
        flat: ``(sum of lengths,)`` all sequences one after another.
        start, length: ``(n,)`` int64, where each sequence begins and how long it is.
    """

    flat: torch.Tensor
    start: torch.Tensor
    length: torch.Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int | float]], dtype: torch.dtype = torch.int64) -> Ragged:
        length = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        flat = torch.tensor(list(chain.from_iterable(sequences)), dtype=dtype)
        return cls(flat, length.cumsum(0) - length, length)

    def __len__(self) -> int:
        return len(self.length)

    def row(self, number: int) -> list[int]:
        """Returns one sequence."""
        start = int(self.start[number])
        return self.flat[start : start + int(self.length[number])].tolist()

    def content(self, number: int) -> bytes:
        """Returns one sequence as bytes, whose prefixes are those of the sequence."""
        start = int(self.start[number])
        return self.flat[start : start + int(self.length[number])].to(torch.int32).numpy().tobytes()

    def distinct(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the first row of each distinct sequence ``(u,)``, and for each sequence the number of the distinct
        one that it equals ``(n,)``."""
        content, places = self.flat.numpy(), {}
        number = [
            places.setdefault(content[start : start + length].tobytes(), len(places))
            for start, length in zip(self.start.tolist(), self.length.tolist(), strict=True)
        ]
        inverse = torch.tensor(number, dtype=torch.int64)
        first = torch.full((len(places),), len(self), dtype=torch.int64)
        return first.scatter_reduce_(0, inverse, torch.arange(len(self)), "amin"), inverse

    def padded(self, rows: torch.Tensor, pad: int | float, side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Pads the selected sequences to the longest of them.

        Args:
            rows: ``(R,)`` int64; may repeat.
            pad: the padding value.
            side: of the padding, ``"left"`` or ``"right"``.

        Returns:
            Values ``(R, T)`` and mask ``(R, T)`` bool, ``T`` at least 1.
        """
        length = self.length[rows]
        width = max(int(length.max()) if len(rows) else 0, 1)
        column = torch.arange(width).expand(len(rows), width)
        position = column - (width - length).unsqueeze(1) if side == "left" else column
        mask = (position >= 0) & (position < length.unsqueeze(1))
        index = torch.where(mask, self.start[rows].unsqueeze(1) + position, 0)
        values = self.flat[index] if len(self.flat) else torch.zeros_like(index, dtype=self.flat.dtype)
        return torch.where(mask, values, torch.as_tensor(pad, dtype=self.flat.dtype)), mask
