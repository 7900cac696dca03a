"""Which (prompt, response) pairs are scored in one row: dialogues whose turns go on from one another are encoded once.

Each row has a path, the text of its pair with the longest prompt. A pair whose whole text begins a path stands along
it; one whose prompt does may stand beside it, as a branch. Texts are bytes, which are compared and sorted fast.
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
    """Pairs of one row.

    Attributes:
        along: those whose text begins the path's, shortest first; the last one is the path.
        beside: those whose prompt does, but not their response.
        room: tokens that may still stand beside the path.
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
        prompt, response: ``(n,)`` int64, which of them each pair is.
    """

    def __init__(self, prompts: Ragged, responses: Ragged, prompt: torch.Tensor, response: torch.Tensor):
        self._prompts, self._responses = prompts, responses
        self._prompt, self._response = prompt.tolist(), response.tolist()
        self.before = prompts.length[prompt].tolist()
        self.answer = responses.length[response].tolist()

    def __len__(self) -> int:
        return len(self._prompt)

    def text(self, pair: int) -> bytes:
        """Prompt and response as bytes."""
        return self._prompts.content(self._prompt[pair]) + self._responses.content(self._response[pair])

    def tree_row(self, row: PairsOfRow) -> TreeRow:
        path = row.along[-1]
        return TreeRow(
            self._prompts.row(self._prompt[path]) + self._responses.row(self._response[path]),
            [(self.before[pair], self.answer[pair]) for pair in row.along],
            [(self.before[pair], self._responses.row(self._response[pair])) for pair in row.beside],
        )

    def by_prompt(self) -> list[list[int]]:
        """The pairs of each prompt."""
        rows: dict[int, list[int]] = {}
        for pair, prompt in enumerate(self._prompt):
            rows.setdefault(prompt, []).append(pair)
        return list(rows.values())

    def behind(self, pairs: Sequence[int]) -> TreeRow:
        """Pairs of one prompt, each response beside the others."""
        return TreeRow.behind(
            self._prompts.row(self._prompt[pairs[0]]), [self._responses.row(self._response[pair]) for pair in pairs]
        )


def rows_of_pairs(pairs: Pairs, budget: int, branch: bool) -> list[PairsOfRow]:
    """Each pair in one row. The pairs of the longest prompts make the paths.

    Args:
        budget: padded tokens per forward. A row of branches holds a quarter of it at most, or a quarter more than its
            path: its mask grows with the square of its length.
        branch: pairs may stand beside a path; else each is along one, its own if need be.
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
    """The paths that begin with a text: in their sorted list they follow one another from the text's own place on."""
    for place in range(bisect_left(paths, text), len(paths)):
        if not paths[place].startswith(text):
            return
        yield paths[place]
