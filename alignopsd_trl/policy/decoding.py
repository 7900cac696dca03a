"""Sampling with the training process's own model, where no engine serves it.

Equal prompts are encoded once and sorted by length, the cache has room for what comes instead of being copied at every
token, rows that have ended leave the batch, and the log-probs of the sampled tokens are kept. Tokens come from the
model's distribution at a temperature; for other ways to sample, and for evaluations, there is transformers'
``generate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from alignopsd_trl.policy.packing import as_attention_mask
from alignopsd_trl.policy.ragged import Ragged
from alignopsd_trl.policy.scoring import plan_chunks

CACHE = 128 << 20  # bytes of keys and values that a batch may hold, beyond which more rows hardly make it faster
LEAVE = 7 / 8  # ended rows leave the batch when fewer than this share of it are live


def rows_in_cache(config: Any, tokens: int, number_bytes: int) -> int:
    """How many rows of so many tokens have room in `CACHE`.

    Args:
        config: the model's text config.
        number_bytes: of one key or value.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    row = 2 * config.num_hidden_layers * config.num_key_value_heads * head * number_bytes * tokens
    return CACHE // row


class RoomyLayer(DynamicLayer):
    """A layer's cache ``(rows, heads, tokens, width)`` in buffers that have room for more tokens.

    Args:
        buffers: keys and values.
        length: how many of their tokens count so far.
    """

    def __init__(self, buffers: list[torch.Tensor], length: int):
        super().__init__()
        self.lazy_initialization(*buffers)
        self._buffers, self._length = buffers, length
        self._show()

    def _show(self) -> None:
        self.keys, self.values = (buffer[:, :, : self._length] for buffer in self._buffers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, self._length = self._length, self._length + key_states.size(2)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, first : self._length] = new
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._buffers = [buffer[indices] for buffer in self._buffers]
        self._show()


@dataclass
class Rows:
    """The live rows of a batch in the making.

    Args:
        place (`torch.Tensor`):
            ``(n,)`` int64, which response a row is.
        visible (`torch.Tensor`):
            ``(n, T)`` bool, encoded prompt tokens (padded on the right) and room for what follows.
        position (`torch.Tensor`):
            ``(n,)`` int64 of the next token.
    """

    place: torch.Tensor
    visible: torch.Tensor
    position: torch.Tensor
    cache: Cache

    def keep(self, chosen: torch.Tensor) -> None:
        self.place, self.visible, self.position = self.place[chosen], self.visible[chosen], self.position[chosen]
        self.cache.batch_select_indices(chosen)


def draw(log_probs: torch.Tensor, place: torch.Tensor, step: int) -> torch.Tensor:
    """One token a row ``(n,)`` from ``(n, V)`` log-probs. ``place`` and ``step`` say which token of which response."""
    mass = log_probs.double().exp().cumsum(-1)
    point = torch.rand((len(mass), 1), dtype=mass.dtype, device=mass.device) * mass[:, -1:]
    return torch.searchsorted(mass, point, right=True).squeeze(1).clamp_max(mass.size(1) - 1)


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_tokens: int,
    end_ids: Sequence[int],
    pad_id: int,
    attention: str = "sdpa",
    budget: int = 4096,
) -> tuple[list[list[int]], list[list[float]]]:
    """One response per prompt.

    Args:
        model: a causal language model that is proven for packed rows (`packing.why_plain`), not split over processes.
        end_ids: a response ends with one of them, or after ``max_tokens``.
        attention: name of the model's attention implementation.
        budget: padded tokens per forward over prompts.

    Returns:
        The responses, end token included, and the float32 log-probs of their tokens at the temperature.
    """
    device = model.device
    ends = torch.tensor(list(end_ids), device=device)
    tokens = torch.full((len(prompts), max_tokens), pad_id, device=device)
    kept = torch.zeros((len(prompts), max_tokens), device=device)
    length = torch.full((len(prompts),), max_tokens, device=device)
    rows = _encode(model, [prompt[:-1] for prompt in prompts], max_tokens, pad_id, budget)
    token = torch.tensor([prompt[-1] for prompt in prompts], device=device)
    for step in range(max_tokens):
        logits = _next(model, rows, token, attention)
        log_probs = (logits.float() / temperature).log_softmax(-1)
        token = draw(log_probs, rows.place, step)
        tokens[rows.place, step] = token
        kept[rows.place, step] = log_probs.gather(1, token.unsqueeze(1)).squeeze(1)
        ended = torch.isin(token, ends) & (length[rows.place] == max_tokens)
        length[rows.place[ended]] = step + 1
        live = length[rows.place] == max_tokens
        count = int(live.sum())
        if count == 0 or step + 1 == max_tokens:
            break
        if count < LEAVE * len(live):
            chosen = live.nonzero().squeeze(1)
            rows.keep(chosen)
            token = token[chosen]
    lengths = length.tolist()
    answers = [row[:end] for row, end in zip(tokens.tolist(), lengths, strict=True)]
    return answers, [row[:end] for row, end in zip(kept.tolist(), lengths, strict=True)]


def _encode(model: torch.nn.Module, texts: Sequence[Sequence[int]], room: int, pad_id: int, budget: int) -> Rows:
    """A row behind each text, with room for more tokens; equal texts are encoded once."""
    ragged = Ragged.of(texts)
    first, parent = ragged.distinct()
    width, buffers = max(int(ragged.length.max()), 1), None
    for chunk in plan_chunks(ragged.length[first], budget):
        ids, _ = ragged.padded(first[chunk], pad_id, "right")
        output = model(input_ids=ids.to(model.device), use_cache=True, logits_to_keep=1)
        found = [(layer.keys, layer.values) for layer in output.past_key_values.layers]
        if buffers is None:
            buffers = [[_room(part, len(texts), width + room) for part in parts] for parts in found]
        place = torch.full((len(first),), -1).index_put((chunk,), torch.arange(len(chunk)))[parent]
        mine = (place >= 0).nonzero().squeeze(1)
        mine, place = mine.to(model.device), place[mine].to(model.device)
        for into, parts in zip(buffers, found, strict=True):
            for buffer, part in zip(into, parts, strict=True):
                buffer[mine, :, : ids.size(1)] = part[place]
                buffer[mine, :, ids.size(1) : width] = 0  # nobody looks, but 0 x NaN is NaN
    length = ragged.length.to(model.device)
    visible = torch.arange(width + room, device=model.device)
    visible = (visible < length.unsqueeze(1)) | (visible >= width)
    cache = Cache(layers=[RoomyLayer(into, width) for into in buffers])
    return Rows(torch.arange(len(texts), device=model.device), visible, length, cache)


def _room(part: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    """A buffer for keys or values like these ``(rows, heads, tokens, width)``."""
    return part.new_empty((rows, part.size(1), tokens, part.size(3)))


def _next(model: torch.nn.Module, rows: Rows, token: torch.Tensor, attention: str) -> torch.Tensor:
    """Logits ``(n, V)`` after one more token a row."""
    length = rows.cache.get_seq_length() + 1
    output = model(
        input_ids=token.unsqueeze(1),
        attention_mask=as_attention_mask(rows.visible[:, None, None, :length], attention),
        position_ids=rows.position.unsqueeze(1),
        past_key_values=rows.cache,
        use_cache=True,
    )
    rows.position = rows.position + 1
    return output.logits[:, -1]
