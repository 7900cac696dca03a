"""The project's own sampling with nobody waiting: a row that ends makes room for the next request at once.

Each row has a length of its own in the cache, and random numbers of its own, which come from its request's seed. So a
response is the same, up to the rounding of a batch of another size, whatever is sampled beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from alignopsd_trl.policy.decoding import closed_up, draw_at, ends, frozen_weights_cached, moved
from alignopsd_trl.policy.packing import as_attention_mask
from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.rollout import Continuous, Request, Response

if TYPE_CHECKING:
    from transformers import PreTrainedModel

JOIN = 1 / 8  # requests join when they would be this share of the batch: few prompts at a time are encoded dearly
BURST = 8  # tokens after which the caller is asked for new requests, if no row has ended before
SPARE = 128  # columns that a cache grows by


class SlotLayer(DynamicLayer):
    """A layer's cache in buffers ``(rows, tokens, heads, width)``, in which each row has a length of its own."""

    def __init__(self, buffers: Sequence[torch.Tensor]):
        super().__init__()
        self.lazy_initialization(*buffers)
        self.buffers = list(buffers)

    def begin(self, column: torch.Tensor, width: int) -> None:
        """Says where the next token of each row goes, ``(n,)`` int64, the largest of them ``width - 1``."""
        self._row, self._column, self._width = torch.arange(len(column), device=column.device), column, width
        self._show(width - 1)

    def _show(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (part[: len(self._row), :width].transpose(1, 2) for part in self.buffers)
        self.keys, self.values = keys, values
        return keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[self._row, self._column] = new.squeeze(2)
        return self._show(self._width)


@dataclass
class Row:
    """A response in the making."""

    request: Request
    future: Future[Response]
    ids: list[int] = field(default_factory=list)


@dataclass
class State:
    """What the device knows of the live rows. All tensors have a row each, ``(n, ...)``.

    Args:
        length: int64, tokens in the cache.
        token: int64, the last one, which is not in it yet.
        numbers: ``(n, max_tokens)`` float64, random numbers of its tokens.
        kept: ``(n, max_tokens)`` float32, log-probs of its tokens so far.
        step: int64, its tokens so far.
    """

    length: torch.Tensor
    token: torch.Tensor
    numbers: torch.Tensor
    kept: torch.Tensor
    step: torch.Tensor

    def map(self, function: Callable[[str, torch.Tensor], torch.Tensor]) -> State:
        return State(**{name: function(name, value) for name, value in vars(self).items()})


@dataclass
class SlotSampler(Continuous):
    """A [`~alignopsd_trl.rollout.Sampler`] that decodes in this process.

    Args:
        model, temperature, max_tokens, end_ids, attention: as in `decoding.LoopSampler`; at temperature 0 each token is
            the likeliest.
        prefixes: what this snapshot of the model made of earlier prompts.
        rows: of some prompts, how many are sampled at once; all of them by default.
        context: held around every few steps, as autocast is.

    Attributes:
        steps: forwards over one more token of each live row.
    """

    model: PreTrainedModel
    temperature: float
    max_tokens: int
    end_ids: Sequence[int]
    prefixes: PrefixCache
    attention: str = "sdpa"
    rows: Callable[[Sequence[Sequence[int]]], int] = len
    context: Callable[[], AbstractContextManager] = nullcontext

    def __post_init__(self) -> None:
        self.steps = 0
        self._buffers: list[torch.Tensor] = []
        self._state: State
        self.drop()

    @property
    def waiting(self) -> int:
        return len(self._asked) + len(self._rows)

    def submit(self, request: Request) -> Future[Response]:
        future: Future[Response] = Future()
        self._asked.append(Row(request, future))
        return future

    def drop(self) -> None:
        self._asked: deque[Row] = deque()
        self._rows: list[Row] = []

    def advance(self) -> bool:
        """Decodes until a response ends, not long."""
        if not self.waiting:
            return False
        with self.context(), frozen_weights_cached(self.model):
            self._join()
            for _ in range(BURST):
                ended = self._step()
                if ended:
                    self._end(ended)
                    break
        return True

    def _join(self) -> None:
        """Gives waiting requests a row, as many as have room."""
        live, waiting = len(self._rows), len(self._asked)
        if not waiting or waiting < JOIN * (live + waiting):
            return
        prompts = [row.request.prompt_ids for row in (*self._rows, *self._asked)]
        count = min(max(self.rows(prompts), 1) - live, waiting)
        if count < 1:
            return
        new = [self._asked.popleft() for _ in range(count)]
        cache: Any = self.prefixes.cache([row.request.prompt_ids[:-1] for row in new], 0)
        found = [part.transpose(1, 2) for layer in cache.layers for part in (layer.keys, layer.values)]
        self._copy(found, live, max(len(row.request.prompt_ids) for row in new) + self.max_tokens)
        state = self._begun(new)
        if live:
            old = vars(self._state)
            state = state.map(lambda name, value: torch.cat([old[name], value]))
        self._state, self._rows = state, [*self._rows, *new]

    def _begun(self, new: Sequence[Row]) -> State:
        device, prompts = self.model.device, [row.request.prompt_ids for row in new]
        numbers = torch.stack([_numbers(row.request.seed, self.max_tokens) for row in new]).to(device)
        return State(
            torch.tensor([len(prompt) - 1 for prompt in prompts], device=device),
            torch.tensor([prompt[-1] for prompt in prompts], device=device),
            numbers,
            torch.zeros(numbers.shape, device=device),
            torch.zeros(len(new), dtype=torch.int64, device=device),
        )

    def _copy(self, found: Sequence[torch.Tensor], live: int, width: int) -> None:
        """Copies keys and values of prompts ``(r, tokens, heads, width)`` into the rows behind the live ones."""
        rows = live + len(found[0])
        if not self._buffers or rows > len(self._buffers[0]) or width > self._buffers[0].size(1):
            self._grow(found, rows, width)
        for buffer, part in zip(self._buffers, found, strict=True):
            buffer[live:rows, : part.size(1)] = part

    def _grow(self, like: Sequence[torch.Tensor], rows: int, width: int) -> None:
        had, held = (len(self._buffers[0]), self._buffers[0].size(1)) if self._buffers else (0, 0)
        rows, width = max(rows, had), max(-(-width // SPARE) * SPARE, held)
        for place, part in enumerate(like):
            buffer = part.new_zeros((rows, width, *part.shape[2:]))  # what is masked must be finite
            if had:
                buffer[:had, :held] = self._buffers[place]
                self._buffers[place] = buffer
            else:
                self._buffers = [*self._buffers[:place], buffer]
        self._layers = [SlotLayer(both) for both in zip(self._buffers[::2], self._buffers[1::2], strict=True)]
        self._cache = Cache(layers=list(self._layers))

    @torch.no_grad()
    def _step(self) -> list[int]:
        """One more token a row; the rows that end with it."""
        state, rows = self._state, torch.arange(len(self._rows), device=self.model.device)
        width = max(len(row.request.prompt_ids) + len(row.ids) for row in self._rows)
        for layer in self._layers:
            layer.begin(state.length, width)
        visible = torch.arange(width, device=rows.device) <= state.length.unsqueeze(1)
        output = self.model(
            input_ids=state.token.unsqueeze(1),
            attention_mask=as_attention_mask(visible[:, None, None], self.attention),
            position_ids=state.length.unsqueeze(1),
            past_key_values=self._cache,
            use_cache=True,
        )
        self.steps += 1
        log_probs = (output.logits[:, -1].float() / (self.temperature or 1.0)).log_softmax(-1)
        state.token = draw_at(log_probs, state.numbers[rows, state.step]) if self.temperature else log_probs.argmax(-1)
        state.kept[rows, state.step] = log_probs.gather(1, state.token.unsqueeze(1)).squeeze(1)
        state.length, state.step = state.length + 1, state.step + 1
        drawn = state.token.tolist()  # the only time that the host waits in a step
        return [place for place, token in enumerate(drawn) if self._ends(self._rows[place], token)]

    def _ends(self, row: Row, token: int) -> bool:
        row.ids.append(token)
        asked = row.request
        return len(row.ids) == self.max_tokens or ends(asked.prompt_ids, row.ids, self.end_ids, asked.until)

    def _end(self, ended: Sequence[int]) -> None:
        """Answers the requests of some rows, and closes the others up."""
        kept = self._state.kept[torch.tensor(ended, device=self.model.device)].tolist()
        done = [self._rows[place] for place in ended]
        stay = closed_up([place not in ended for place in range(len(self._rows))])
        chosen = torch.tensor(stay, dtype=torch.int64, device=self.model.device)
        self._state = self._state.map(lambda _, value: value[chosen])
        moves, places = moved(stay, self.model.device)
        if len(moves):
            for buffer in self._buffers:
                buffer[places] = buffer[moves]
        self._rows = [self._rows[place] for place in stay]
        for row, values in zip(done, kept, strict=True):
            row.future.set_result(Response(row.ids, values[: len(row.ids)]))


def _numbers(seed: int, count: int) -> torch.Tensor:
    """Random numbers of a response, on the CPU, so that they are the same on every device."""
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
