"""Packs several responses to one text into one row, so that the text is encoded once.

A path is a prompt or a whole dialogue. Responses that are part of the path are scored in place. Others branch off
where they would begin (here one with the labels s0, s1 after the path's first P tokens):

    ids       t0 t1 .. tP-2 tP-1 tP .. | tP-1 s0 s1 ..
    labels     -  -  ..  -   tP  -  .. |  s0  s1 s2 ..
    segment    0  0  ..  0   0   0  .. |   1   1  1 ..

A token of a branch attends to the path up to the branching point and to the earlier tokens of its own segment; its
positions continue from that point. Every branch begins with the token before the response, which predicts the first
token of the response.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import transformers

CACHE_NAME = "cache" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24) else "past_key_values"
"""The name of a forward's argument for keys and values; transformers 5.24 warns of the old one."""
TOKEN_BYTES = 4  # of `Ragged.content`
PROVEN = ("llama", "qwen2", "qwen3")
"""Model types whose packed scores are tested against plain ones."""


def why_plain(config: Any, attention: str) -> str | None:
    """Returns why a model's prompts can't be shared in packed rows, or ``None`` if they can.

    Args:
        config: the model's text config.
    """
    if config.model_type not in PROVEN:
        return f"model_type={config.model_type!r} is none of {', '.join(PROVEN)}"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"it has layers of {', '.join(sorted(kinds - {'full_attention'}))}"
    if attention not in ("sdpa", "eager"):
        return f"attn_implementation={attention!r} takes no mask of its own; 'sdpa' and 'eager' do"
    return depends_on_length(config)


def attention_of(model: Any) -> str:
    """Returns the name of the implementation of a model's attention."""
    return model.config.get_text_config()._attn_implementation


def depends_on_length(config: Any) -> str | None:
    """Returns why the encoding of a token's position depends on the row's length, or ``None`` if it does not."""
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [given, *(one for one in given.values() if isinstance(one, dict))]  # layers may have their own
    found = [kind for one in kinds if (kind := one.get("rope_type")) in ("dynamic", "longrope")]
    return f"its rope_type={found[0]!r} depends on the length of the row" if found else None


@dataclass(frozen=True)
class Ragged:
    """n sequences of token ids of different lengths, without padding.

    Args:
        flat: ``(sum of lengths,)`` int64, all sequences one after another.
        start, length: ``(n,)`` int64, where each sequence begins and how long it is.
    """

    flat: torch.Tensor
    start: torch.Tensor
    length: torch.Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        length = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        flat = torch.tensor(list(chain.from_iterable(sequences)), dtype=torch.int64)
        return cls(flat, length.cumsum(0) - length, length)

    def __len__(self) -> int:
        return len(self.length)

    @property
    def longest(self) -> int:
        """The length of the longest sequence, at least 1."""
        return max(int(self.length.max()) if len(self) else 0, 1)

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

    def padded(self, pad: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Pads on the ``"left"`` or ``"right"`` side. Returns values ``(n, T)`` int64 and mask ``(n, T)`` bool, where
        ``T`` is at least 1."""
        length, column = self.length.unsqueeze(1), torch.arange(self.longest)
        mask = column >= self.longest - length if side == "left" else column < length
        values = torch.full(mask.shape, pad)
        values[mask] = self.flat
        return values, mask


@dataclass(frozen=True)
class TreeRow:
    """A path with the responses that are scored in its row.

    Attributes:
        path: token ids. The last one is not fed: it predicts nothing.
        spans: first token (never 0) and length of each response that is part of the path.
        branches: for each other response the number of path tokens before it (at least one), and its token ids.
    """

    path: Sequence[int]
    spans: Sequence[tuple[int, int]] = ()
    branches: Sequence[tuple[int, Sequence[int]]] = ()

    @classmethod
    def behind(cls, prompt: Sequence[int], responses: Sequence[Sequence[int]]) -> TreeRow:
        """Makes a row whose responses all branch off at the end of a prompt."""
        return cls(prompt, (), [(len(prompt), response) for response in responses])

    def __len__(self) -> int:
        """Returns the number of tokens that are fed."""
        return len(self.path) - 1 + sum(len(response) for _, response in self.branches)

    def places(self) -> list[tuple[int, int]]:
        """Returns first column and length of each response's scores in the row, spans first."""
        places = [(first - 1, length) for first, length in self.spans]
        column = len(self.path) - 1
        for _, response in self.branches:
            places.append((column, len(response)))
            column += len(response)
        return places


@dataclass(frozen=True)
class Packed:
    """Tree rows as padded tensors, ``T`` tokens at most.

    Attributes:
        ids, position: ``(R, T)`` int64.
        labels: ``(R, T)`` int64, the token that each position predicts, -100 where none is scored.
        segment: ``(R, T)`` int64, 0 in the path, 1, 2, ... in the branches, -1 in the padding.
        reach: ``(R, T)`` int64, the number of path tokens that a branch token attends to.
        branched: whether there is a branch; without one the rows are plain text.
    """

    ids: torch.Tensor
    position: torch.Tensor
    labels: torch.Tensor
    segment: torch.Tensor
    reach: torch.Tensor
    branched: bool

    @classmethod
    def of(cls, tree_rows: Sequence[TreeRow], pad_id: int, paths: bool = True) -> Packed:
        """Packs each tree row into one row.

        Args:
            paths: whether rows contain their paths; else only the branches, for paths that are cached.
        """
        first = [0 if paths else len(tree_row.path) - 1 for tree_row in tree_rows]
        rows = [[values[start:] for values in _row(row)] for row, start in zip(tree_rows, first, strict=True)]
        columns = zip(zip(*rows, strict=True), (pad_id, 0, -100, -1, 0), strict=True)
        tensors = (Ragged.of(column).padded(padding, "right")[0] for column, padding in columns)
        return cls(*tensors, branched=any(tree_row.branches for tree_row in tree_rows))

    def to(self, device: torch.device) -> Packed:
        tensors = (self.ids, self.position, self.labels, self.segment, self.reach)
        return Packed(*torch.stack(tensors).to(device), branched=self.branched)

    def mask(self, before: int = 0) -> torch.Tensor:
        """Returns ``(R, 1, T, before + T)`` bool: the keys that each query attends to. Padding attends to the padding
        before it, since a query needs at least one key.

        Args:
            before: the number of cached path tokens before the rows.
        """
        query, key = self.segment.unsqueeze(2), self.segment.unsqueeze(1)
        width = self.ids.size(1)
        earlier = torch.ones((width, width), dtype=torch.bool, device=self.ids.device).tril()
        place = torch.arange(width, device=self.ids.device)
        path = (key == 0) & (query > 0) & (place < self.reach.unsqueeze(2))
        known = torch.arange(before, device=self.ids.device) < self.reach.unsqueeze(2)
        return torch.cat([known, earlier & ((query == key) | path)], dim=2).unsqueeze(1)

    def inputs(self, attention: str, before: Callable[[], Any] | None = None) -> dict[str, Any]:
        """Returns the arguments of a model's forward of these rows.

        Args:
            attention: the model's attention implementation.
            before: returns the cache of the paths, where the rows do not contain them.
        """
        cache = None if before is None else before()
        mask = self.attention_mask(attention, 0 if cache is None else cache.get_seq_length())
        position = None if mask is None else self.position  # with gaps transformers builds a mask
        given = {"input_ids": self.ids, "attention_mask": mask, "position_ids": position}
        return given | ({"use_cache": False} if cache is None else {"use_cache": True, CACHE_NAME: cache})

    def attention_mask(self, attention: str, before: int = 0) -> torch.Tensor | None:
        """Returns the mask in the form that an attention implementation takes. `None` for rows without branches and
        without cached tokens before them: causal attention is right there, since their padding comes last."""
        return as_attention_mask(self.mask(before), attention) if before or self.branched else None


def _row(tree_row: TreeRow) -> tuple[list[int], ...]:
    """Returns ids, positions, labels, segments and reach of a tree row."""
    length = len(tree_row.path) - 1
    ids, position = list(tree_row.path[:-1]), list(range(length))
    labels, segment, reach = [-100] * length, [0] * length, [0] * length
    for first, count in tree_row.spans:
        labels[first - 1 : first - 1 + count] = tree_row.path[first : first + count]
    for number, (before, response) in enumerate(tree_row.branches, 1):
        count, start = len(response), before - 1
        ids += [tree_row.path[start], *response[:-1]] if response else []
        position += range(start, start + count)
        labels += response
        segment += [number] * count
        reach += [start] * count
    return ids, position, labels, segment, reach


def as_attention_mask(visible: torch.Tensor, attention: str) -> torch.Tensor:
    """Returns a bool mask ``(R, 1, T, T)`` in the form that the attention implementation takes."""
    if attention != "eager":
        return visible
    return torch.zeros_like(visible, dtype=torch.float32).masked_fill_(~visible, torch.finfo(torch.float32).min)


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

    def among(self, rows: torch.Tensor) -> Pairs:
        """Returns some of the pairs."""
        prompt, response = torch.tensor([self._prompt, self._response], dtype=torch.int64)[:, rows]
        return Pairs(self._prompts, self._responses, prompt, response)

    def content(self, pair: int) -> tuple[bytes, bytes]:
        """Returns prompt and response as bytes."""
        return self._prompts.content(self._prompt[pair]), self._responses.content(self._response[pair])

    def tree_row(self, row: PairsOfRow) -> TreeRow:
        path = row.along[-1]
        return TreeRow(
            self._prompts.row(self._prompt[path]) + self._responses.row(self._response[path]),
            [(self.before[pair], self.answer[pair]) for pair in row.along],
            [(self.before[pair], self._responses.row(self._response[pair])) for pair in row.beside],
        )

    def by_prompt(self) -> list[tuple[list[int], TreeRow]]:
        """Returns the pairs of each prompt, and their row with each response as a branch."""
        rows: dict[int, list[int]] = {}
        for pair, prompt in enumerate(self._prompt):
            rows.setdefault(prompt, []).append(pair)
        answers = {prompt: [self._responses.row(self._response[pair]) for pair in row] for prompt, row in rows.items()}
        return [(row, TreeRow.behind(self._prompts.row(prompt), answers[prompt])) for prompt, row in rows.items()]


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
        before, answer, text = pairs.before[pair], pairs.answer[pair], b"".join(pairs.content(pair))
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
