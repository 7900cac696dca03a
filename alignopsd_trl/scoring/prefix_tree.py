"""Assigns (prompt, response) pairs to rows, so that the common prefixes of a dialogue's turns are encoded once.

The path of a row is the text of its pair with the longest prompt. A pair whose whole text is a prefix of the path lies
along it; a pair whose prompt alone is one may be a branch beside it. Texts are bytes, which compare and sort fast.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from alignopsd_trl.scoring.packing import TreeRow
from alignopsd_trl.scoring.ragged import Ragged

TOKEN_BYTES = 4  # of `Ragged.content`


@dataclass
class PairsOfRow:
    """The pairs of one row.

    Attributes:
        along: pairs whose text is a prefix of the path, shortest first; the last one is the path.
        beside: pairs that branch off: only their prompt is a prefix of the path.
        room: the number of tokens that further branches may have.
    """

    along: list[int]
    beside: list[int] = field(default_factory=list)
    room: int = field(default=0, compare=False)

    @property
    def all(self) -> list[int]:
        return [*self.along, *self.beside]


class Pairs:
    """Distinct pairs of a prompt and a response.

    Args:
        prompts, responses: token ids.
        prompt, response: ``(n,)`` int64, the row of each pair in ``prompts`` and ``responses``.
    """

    def __init__(self, prompts: Ragged, responses: Ragged, prompt: torch.Tensor, response: torch.Tensor):
        self._prompts, self._responses = prompts, responses
        self._prompt, self._response = prompt.tolist(), response.tolist()
        self.before = prompts.length[prompt].tolist()
        self.answer = responses.length[response].tolist()

    def __len__(self) -> int:
        return len(self._prompt)

    def text(self, pair: int) -> bytes:
        """Returns prompt and response as bytes."""
        return self._prompts.content(self._prompt[pair]) + self._responses.content(self._response[pair])

    def tree_row(self, row: PairsOfRow) -> TreeRow:
        path = row.along[-1]
        return TreeRow(
            self._prompts.row(self._prompt[path]) + self._responses.row(self._response[path]),
            [(self.before[pair], self.answer[pair]) for pair in row.along],
            [(self.before[pair], self._responses.row(self._response[pair])) for pair in row.beside],
        )

    def by_prompt(self) -> list[list[int]]:
        """Groups the pairs by prompt."""
        rows: dict[int, list[int]] = {}
        for pair, prompt in enumerate(self._prompt):
            rows.setdefault(prompt, []).append(pair)
        return list(rows.values())

    def behind(self, pairs: Sequence[int]) -> TreeRow:
        """Makes a row of the pairs of one prompt, with each response as a branch."""
        return TreeRow.behind(
            self._prompts.row(self._prompt[pairs[0]]), [self._responses.row(self._response[pair]) for pair in pairs]
        )


def rows_of_pairs(pairs: Pairs, budget: int, branch: bool) -> list[PairsOfRow]:
    """Assigns each pair to one row. The pairs with the longest prompts make the paths.

    Args:
        budget: padded tokens per forward. A row with branches holds a quarter of it at most, or its path and a quarter
            more: its mask grows with the square of its length.
        branch: whether pairs may branch off; else each lies along a path, its own if need be.
    """
    rows: dict[bytes, PairsOfRow] = {}  # by the texts of their paths
    paths: list[bytes] = []  # the same texts, sorted
    for pair in sorted(range(len(pairs)), key=lambda one: (-pairs.before[one], -pairs.answer[one])):
        before, answer, text = pairs.before[pair], pairs.answer[pair], pairs.text(pair)
        prompt = text[: TOKEN_BYTES * before]
        hosts = (rows[path] for path in _beginning_with(prompt, paths) if rows[path].room >= answer) if branch else ()
        if (path := next(_beginning_with(text, paths), None)) is not None:
            rows[path].along.insert(0, pair)
        elif (host := next(iter(hosts), None)) is not None:
            host.beside.append(pair)
            host.room -= answer
        else:
            rows[text] = PairsOfRow([pair], room=max(budget // 4 - (before + answer), (before + answer) // 4))
            insort(paths, text)
    return list(rows.values())


def _beginning_with(text: bytes, paths: list[bytes]) -> Iterator[bytes]:
    """Yields the paths that begin with a text; in the sorted list they follow the text's own position."""
    for place in range(bisect_left(paths, text), len(paths)):
        if not paths[place].startswith(text):
            return
        yield paths[place]
