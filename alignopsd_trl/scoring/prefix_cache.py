"""A cache of the keys and values of prompts, in which common prefixes are encoded once.

A pool holds the keys and values of single tokens, and a text is a list of places in it. A new text reuses the longest
prefix that it shares with a cached one, which is its neighbour in sorted order. Many new texts are encoded in waves, so
that later ones reuse earlier ones, here nine in sorted order:

    first     0               8     reuse cached texts
    second            4             reuses 0, 8 or cached texts
    third         2       6
    last        1   3   5   7

After the first wave nothing is encoded twice: a prefix of two texts is a prefix of every text between them.
"""

from __future__ import annotations

import contextlib
from bisect import bisect, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from alignopsd_trl.scoring.packing import CACHE_NAME, Ragged, as_attention_mask, attention_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STRIDE = 8  # every eighth of the sorted texts belongs to the first wave
ENOUGH = 512  # padded tokens; larger forwards are hardly cheaper per token
LIKE = 0.85  # beyond ENOUGH, rows shorter than this share of the longest go into the next forward
POOL = 512 << 20  # bytes of cached prompts on a CPU: those of some hundred turns with the shipped policies
CACHE = 128 << 20  # bytes of a batch on a CPU; larger batches are hardly faster
SHARE = 0.5  # of a GPU's free memory
SEVERAL = 4  # a GPU's limits hold this many of the longest rows, however little is free

Text = tuple[int, ...]


class RoomyLayer(DynamicLayer):
    """A layer's cache ``(rows, heads, tokens, width)`` in buffers with space for more tokens.

    Args:
        buffers: keys and values.
        length: the number of tokens that are filled.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], length: int):
        super().__init__()
        self.lazy_initialization(*buffers)
        self.buffers, self._length = list(buffers), length
        self._show()

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (buffer[:, :, : self._length] for buffer in self.buffers)
        self.keys, self.values = keys, values
        return keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, self._length = self._length, self._length + key_states.size(2)
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, first : self._length] = new
        return self._show()

    def move(self, rows: torch.Tensor, places: torch.Tensor, count: int) -> None:
        """Moves rows to the places of others and keeps the first ``count`` rows."""
        for buffer in self.buffers:
            known = buffer.transpose(1, 2)[:, : self._length]  # a token's heads lie together
            known[places] = known.index_select(0, rows)
        self.buffers = [buffer[:count] for buffer in self.buffers]
        self._show()


class PrefixCache:
    """The cached keys and values of prompts under one snapshot of a model. They are invalid for other weights.
    Gradient checkpointing must be off, since it keeps no cache.

    Args:
        model: a causal language model that is proven for packed rows (`packing.why_plain`), not split over processes.
        budget: padded tokens per forward.
        dtype: of keys and values: autocast's, by default that of the weights.
        limits: of memory, by default those on a CPU.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pad_id: int,
        budget: int = 4096,
        dtype: torch.dtype | None = None,
        limits: CacheLimits | None = None,
    ):
        self.model, self._pad_id, self.attention, self._budget = model, pad_id, attention_of(model), budget
        config: Any = model.config.get_text_config()
        self._dtype = dtype or model.dtype
        self.limits = limits or CacheLimits(POOL, CACHE)
        self._size = self.limits.pool // token_bytes(config, self._dtype.itemsize)
        self._layers = config.num_hidden_layers
        self._pool: list[torch.Tensor] = []  # (size, heads, width): keys and values of each layer
        self._last: list[torch.Tensor] = []  # buffers of the last cache
        self._used = 0
        self._places: dict[Text, torch.Tensor] = {}
        self._sorted: list[Text] = []
        self._latest: list[Text] = []
        self._kept: set[Text] = set()

    def keep(self, texts: Sequence[Sequence[int]]) -> None:
        """Marks texts that will be needed again: they are evicted last."""
        self._kept.update(self._texts(texts))

    def _texts(self, texts: Sequence[Sequence[int]]) -> list[Text]:
        return [tuple(text) or (self._pad_id,) for text in texts]

    @torch.no_grad()
    def cache(self, texts: Sequence[Sequence[int]], room: int) -> Cache:
        """Returns the keys and values of texts, padded on the right to the longest (one token at least), with space for
        ``room`` more tokens. The next call overwrites them."""
        known = self._texts(texts)
        width, buffers = max(map(len, known)), []
        for part in self._parts(known):
            places = _padded(self._find([known[row] for row in part]), width + room)
            buffers = buffers or self._scratch(len(known), width + room)
            if len(part) == len(known):
                self._copy(places, buffers)
                continue
            some = self._buffers(*places.shape)
            self._copy(places, some)
            rows = torch.tensor(part, device=buffers[0].device)
            for buffer, found in zip(buffers, some, strict=True):
                buffer.index_copy_(0, rows, found)
        return _cache_of(buffers, width)

    def _parts(self, texts: Sequence[Text]) -> Iterator[list[int]]:
        """Yields indices of texts, in groups of neighbours in sorted order that fit the pool."""
        part: list[int] = []
        tokens, last = 0, None
        for row in sorted(range(len(texts)), key=texts.__getitem__):
            more = len(texts[row]) if texts[row] != last else 0
            if part and tokens + more > self._size:
                yield sorted(part)
                part, tokens = [], 0
            part.append(row)
            tokens, last = tokens + more, texts[row]
        yield sorted(part)

    def _find(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        """Encodes new texts and returns the places of every text. Unless it is only one, all must fit the pool."""
        self._make_room(set(texts))
        for wave in _waves(sorted(set(texts) - self._places.keys())):
            self._encode(wave)
        self._latest = list(dict.fromkeys(texts))
        return [self._places[text] for text in texts]

    def _make_room(self, wanted: set[Text]) -> None:
        """Evicts as few texts as the wanted ones require: first those that the last call did not use, then those that
        were not marked by `keep`."""
        if self._used + sum(map(len, wanted - self._places.keys())) <= self._size:
            return
        again = [text for text in self._places if text in self._kept]
        for kept in (list(self._places), list(dict.fromkeys([*self._latest, *again])), again, []):
            places = [self._places[text] for text in kept]
            used, where = torch.cat([*places, torch.zeros(0, dtype=torch.int64)]).unique(return_inverse=True)
            if len(used) + sum(map(len, wanted.difference(kept))) <= self._size or not kept:
                break
        if len(kept) < len(self._places):
            used = used.to(self._pool[0].device)
            for part in self._pool:
                part[: len(used)] = part[used]
            self._used, self._sorted = len(used), sorted(kept)
            self._places = dict(zip(kept, where.split([len(one) for one in places]), strict=True))

    def _encode(self, texts: Sequence[Text]) -> None:
        known = [self._beginning(text) for text in texts]
        self._places |= zip(texts, known, strict=True)  # complete for a text that is a prefix of another one
        rest = [text[len(places) :] for text, places in zip(texts, known, strict=True)]
        for rows in _batches([*map(len, rest)], [*map(len, texts)], self._budget):
            ids, real = Ragged.of([rest[row] for row in rows]).padded(self._pad_id, "right")
            for row, places in zip(rows, self._forward(ids, real, [known[row] for row in rows]), strict=True):
                self._places[texts[row]] = torch.cat([known[row], places])
        for text in texts:
            insort(self._sorted, text)

    def _beginning(self, text: Text) -> torch.Tensor:
        """Returns the places in the pool of the longest prefix that a text shares with a cached one."""
        place = bisect(self._sorted, text)
        lengths = {len(commonprefix([text, near])): near for near in self._sorted[max(place - 1, 0) : place + 1]}
        longest = max(lengths, default=0)
        return self._places[lengths[longest]][:longest] if longest else torch.zeros(0, dtype=torch.int64)

    def _forward(self, ids: torch.Tensor, real: torch.Tensor, before: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Encodes tokens ``(r, s)`` after cached prefixes and returns the places of the real ones, by row."""
        device, (rows, width) = self.model.device, ids.shape
        past, options, cache = _padded(before), {}, Cache(layers=[DynamicLayer() for _ in range(self._layers)])
        if past.size(1):
            length = torch.tensor([len(one) for one in before]).unsqueeze(1)
            seen = (torch.arange(past.size(1)) < length).unsqueeze(1).expand(-1, width, -1)
            own = torch.ones((width, width), dtype=torch.bool).tril().expand(rows, -1, -1)
            visible = torch.cat([seen, own], dim=2).unsqueeze(1).to(device)
            buffers = self._buffers(rows, past.size(1) + width)
            self._copy(_padded(before, past.size(1) + width), buffers)
            cache = _cache_of(buffers, past.size(1))
            options = {
                "attention_mask": as_attention_mask(visible, self.attention),
                "position_ids": (length + torch.arange(width)).to(device),
            }
        _fill(cache, self.model, ids.to(device), options)
        layers: Any = cache.layers
        found = [part for layer in layers for part in (layer.keys, layer.values)]
        new = torch.arange(self._used, self._used + int(real.sum()))
        self._used += len(new)
        if not self._pool or self._used > len(self._pool[0]):
            self._grow(found)
        encoded = real.flatten().nonzero().squeeze(1).to(device)  # a mask on the device would synchronise every layer
        for part, values in zip(self._pool, found, strict=True):
            tokens = values[:, :, past.size(1) :].transpose(1, 2).flatten(0, 1)
            part[self._used - len(new) : self._used] = tokens.index_select(0, encoded)
        return new.split(real.sum(1).tolist())

    def _grow(self, like: Sequence[torch.Tensor]) -> None:
        """Allocates the pool, or a larger one for a text that does not fit."""
        size = max(self._size, self._used)
        pool = [part.new_empty((size, part.size(1), part.size(3)), dtype=self._dtype) for part in like]
        for new, old in zip(pool, self._pool, strict=False):
            new[: len(old)] = old
        self._pool = pool

    def _buffers(self, rows: int, tokens: int) -> list[torch.Tensor]:
        return [part.new_empty((rows, tokens, *part.shape[1:])) for part in self._pool]

    def _scratch(self, rows: int, tokens: int) -> list[torch.Tensor]:
        """Returns buffers for a cache. On a CPU it reuses the last ones: allocation costs more than the copy."""
        if self._pool[0].device.type != "cpu":
            return self._buffers(rows, tokens)
        if not self._last or len(self._last[0]) < rows * tokens:
            self._last = [part.new_empty((rows * tokens, *part.shape[1:])) for part in self._pool]
        return [part[: rows * tokens].unflatten(0, (rows, tokens)) for part in self._last]

    def _copy(self, places: torch.Tensor, buffers: Sequence[torch.Tensor]) -> None:
        """Copies the keys and values at places ``(r, T)`` into buffers ``(r, T, heads, width)``."""
        places = places.to(self._pool[0].device).flatten()
        for part, buffer in zip(self._pool, buffers, strict=True):
            torch.index_select(part, 0, places, out=buffer.flatten(0, 1))  # three times as fast as indexing


class _Filled(Exception):
    """Ends a forward whose remaining layers are not needed."""


def _fill(cache: Cache, model: PreTrainedModel, ids: torch.Tensor, options: dict[str, Any]) -> None:
    """Fills a new cache with the keys and values of tokens. The forward ends as soon as the last layer has them, since
    its output is not used."""
    last: Any = cache.layers[-1]
    inner = last.update

    def update(*arguments: object, **named: object) -> None:
        inner(*arguments, **named)
        raise _Filled

    last.update = update
    with contextlib.suppress(_Filled):
        model(input_ids=ids, use_cache=True, logits_to_keep=1, **{CACHE_NAME: cache}, **options)


def _cache_of(buffers: Sequence[torch.Tensor], length: int) -> Cache:
    """Makes a cache of buffers ``(rows, tokens, heads, width)``, the memory layout of the pool."""
    shown = [buffer.transpose(1, 2) for buffer in buffers]
    return Cache(layers=[RoomyLayer(both, length) for both in zip(shown[::2], shown[1::2], strict=True)])


def _padded(places: Sequence[torch.Tensor], width: int = 0) -> torch.Tensor:
    """Pads places to ``(n, T)``, at least so wide. Place 0 stands for padding, since it always holds a token."""
    found = pad_sequence(list(places), batch_first=True)
    return torch.nn.functional.pad(found, (0, max(width - found.size(1), 0)))


def _batches(new: Sequence[int], whole: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yields the indices of texts with tokens to encode, in batches, those with the most tokens first.

    Args:
        budget: padded tokens of a batch; a row counts a quarter of its whole text at least.
    """
    batch: list[int] = []
    longest = 0
    for row in sorted(filter(new.__getitem__, range(len(new))), key=lambda row: -new[row]):
        longest, width = max(longest, whole[row]), new[batch[0]] if batch else 0
        full = (len(batch) + 1) * max(width, longest // 4) > budget
        short = new[row] < LIKE * width and len(batch) * width >= ENOUGH
        if batch and (full or short):
            yield batch
            batch, longest = [], whole[row]
        batch.append(row)
    if batch:
        yield batch


def _waves(texts: list[Text]) -> Iterator[list[Text]]:
    """Yields sorted texts in waves: every `STRIDE`-th, then repeatedly those halfway between."""
    stride = STRIDE
    while stride > 1 and len(texts) < 4 * stride:
        stride //= 2
    if texts:
        yield texts[::stride]
    while stride > 1:
        yield texts[stride // 2 :: stride]
        stride //= 2


# Limits on the bytes of keys and values


@dataclass(frozen=True)
class CacheLimits:
    """Limits in bytes.

    Attributes:
        pool: of the cached prompts. A single longer prompt is cached all the same.
        batch: of the rows that are sampled at once.
        bounds_rollout: whether a rollout's rows are cut into batches by ``batch``; else they are sampled at once.
    """

    pool: int
    batch: int
    bounds_rollout: bool = False


def cache_limits(free: float | None, row: int, caches: int = 1) -> CacheLimits:
    """Returns the limits on a device: four fifths of a `SHARE` of its free memory for the pool, one for the batch, at
    least `SEVERAL` of the longest rows in each. On the CPU they are `POOL` and `CACHE`.

    Args:
        free: free bytes of the device, `None` for the CPU.
        row: bytes of the longest prompt and response.
        caches: number of caches that divide the share.
    """
    if free is None:
        return CacheLimits(POOL, CACHE)
    pool, batch = (int(SHARE / caches * part * max(free, 0.0)) for part in (0.8, 0.2))
    return CacheLimits(max(pool, SEVERAL * row), max(batch, SEVERAL * row), bounds_rollout=True)


def free_memory(device: torch.device) -> int | None:
    """Returns the free bytes of a GPU, including torch's own cache; `None` for other devices."""
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def token_bytes(config: Any, number_bytes: int) -> int:
    """Returns the bytes of a token's keys and values.

    Args:
        config: the model's text config.
        number_bytes: bytes of one number.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head * number_bytes
