"""Which (prompt, response) pairs are scored in one row: dialogues whose turns go on from one another are encoded once.

Pairs are compared as bytes: in a sorted list, the texts that begin with a text follow one another from its place on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from alignopsd_trl.policy.packing import TreeRow
from alignopsd_trl.policy.ragged import Ragged


@dataclass(frozen=True)
class PairsOfRow:
    """Pairs of one row.

    Attributes:
        along: those whose text begins the path's, shortest first; the last one is the path.
        beside: those whose prompt does, but not their response.
    """

    along: list[int]
    beside: list[int]

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
        """Prompt and response, four bytes a token."""
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
    paths: list[tuple[bytes, int]] = []
    found: dict[int, tuple[list[int], list[int]]] = {}
    room: dict[int, int] = {}
    for pair in sorted(range(len(pairs)), key=lambda one: (-pairs.before[one], -pairs.answer[one])):
        text = pairs.text(pair)
        if (path := next(_beginning(paths, text), None)) is not None:
            found[path][0].append(pair)
            continue
        hosts = _beginning(paths, text[: 4 * pairs.before[pair]]) if branch else iter(())
        host = next((one for one in hosts if room[one] >= pairs.answer[pair]), None)
        if host is not None:
            found[host][1].append(pair)
            room[host] -= pairs.answer[pair]
            continue
        insort(paths, (text, pair))
        found[pair] = [pair], []
        tokens = pairs.before[pair] + pairs.answer[pair]
        room[pair] = max(budget // 4, tokens * 5 // 4) - tokens
    return [PairsOfRow(along[::-1], beside) for along, beside in found.values()]


def _beginning(paths: list[tuple[bytes, int]], text: bytes) -> Iterator[int]:
    """The pairs of the sorted paths that begin with a text."""
    place = bisect_left(paths, (text, -1))
    while place < len(paths) and paths[place][0].startswith(text):
        yield paths[place][1]
        place += 1


def each_alone(pairs: Pairs) -> list[PairsOfRow]:
    return [PairsOfRow([pair], []) for pair in range(len(pairs))]
