"""Samples from the model of the training process, without an engine.

Common beginnings of prompts are encoded once, the cache is allocated for the whole response instead of being copied at
every token, ended rows leave the batch, and the log-probs of the sampled tokens are kept. Tokens are drawn at a
temperature alone; other ways to sample use transformers' ``generate``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from alignopsd_trl.common.patched import patched
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import BatchSampler, Responses
from alignopsd_trl.scoring.packing import CACHE_NAME, as_attention_mask, attention_of, why_plain
from alignopsd_trl.scoring.prefix_cache import PrefixCache

LEAVE = 7 / 8  # ended rows leave the batch when fewer than this share of it are live


@dataclass
class Rows:
    """The live rows of a batch that is being decoded.

    Args:
        place: ``(n,)`` int64, the number of each row's response.
        visible: ``(n, T)`` bool, false in the prompts' padding, true at prompt tokens and all columns behind.
        position: ``(n,)`` int64 of the next token.
    """

    place: torch.Tensor
    visible: torch.Tensor
    position: torch.Tensor
    cache: Cache

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only the given rows, which `closed_up` has ordered."""
        device, places = self.place.device, [place for place, row in enumerate(rows) if place != row]
        moves = torch.tensor([[rows[place] for place in places], places], dtype=torch.int64, device=device)
        chosen = torch.tensor(rows, device=device)
        self.place, self.visible, self.position = self.place[chosen], self.visible[chosen], self.position[chosen]
        layers: Any = self.cache.layers
        for layer in layers:
            layer.move(*moves, len(rows))


def closed_up(going: Sequence[bool]) -> list[int]:
    """Returns the indices of rows that go on. The last ones fill the places of ended rows, so that few are copied."""
    count = sum(going)
    last = iter([row for row in range(count, len(going)) if going[row]])
    return [row if going[row] else next(last) for row in range(count)]


def draw(log_probs: torch.Tensor, place: torch.Tensor, step: int) -> torch.Tensor:
    """Draws one token for each row, ``(n,)``, from log-probs ``(n, V)``. Random numbers are dealt in the order of the
    responses' numbers, ``place``, so that a response gets the same ones whichever row it is in."""
    numbers = torch.rand(len(log_probs), dtype=torch.float64, device=log_probs.device)[place.argsort().argsort()]
    mass = log_probs.double().exp().cumsum(-1)
    point = numbers.unsqueeze(1) * mass[:, -1:]
    return torch.searchsorted(mass, point, right=True).squeeze(1).clamp_max(mass.size(1) - 1)


@contextmanager
def frozen_weights_cached(model: torch.nn.Module) -> Generator[None]:
    """Lets a surrounding autocast cache the casts of frozen weights while the context is open. Autocast caches casts
    only of float32 leaves that require a gradient, so they are marked as such; no gradient is computed."""
    frozen = [value for value in model.parameters() if value.dtype == torch.float32 and not value.requires_grad]
    try:
        for value in frozen:
            value.requires_grad_(True)
        with torch.no_grad():
            yield
    finally:
        for value in frozen:
            value.requires_grad_(False)


@dataclass(frozen=True)
class LoopSampler:
    """A [`~alignopsd_trl.rollout.BatchSampler`] that decodes in this process.

    Args:
        prefixes: the model, and its cache of earlier prompts.
        temperature: 0 decodes greedily.
        end_ids: a response ends with one of them, or after ``max_tokens``.
        rows: returns how many of the given prompts to sample at once; by default all.
        context: opened around all steps, such as autocast.
    """

    prefixes: PrefixCache
    temperature: float
    max_tokens: int
    end_ids: Sequence[int]
    rows: Callable[[Sequence[Sequence[int]]], int] = len
    context: Callable[[], AbstractContextManager] = nullcontext

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        size, ids, log_probs = max(self.rows(prompts), 1), [], []
        for first in range(0, len(prompts), size):
            with self.context(), frozen_weights_cached(self.prefixes.model):
                found, kept = self.sample(prompts[first : first + size], until)
            ids += found
            log_probs += kept
        return Responses(ids, log_probs)

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Sequence[int]], until: Reader | None = None
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Samples one response per prompt, all in one batch.

        Returns:
            The responses, end token included, and the float32 log-probs of their tokens at the temperature.
        """
        model, device = self.prefixes.model, self.prefixes.model.device
        responses: list[list[int]] = [[] for _ in prompts]
        kept = torch.zeros((len(prompts), self.max_tokens), device=device)
        rows = _begin(self.prefixes, [prompt[:-1] for prompt in prompts], self.max_tokens)
        live, going = list(range(len(prompts))), [True] * len(prompts)
        token = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        for step in range(self.max_tokens):
            logits = _next(model, rows, token, self.prefixes.attention)
            log_probs = (logits.float() / (self.temperature or 1.0)).log_softmax(-1)
            token = draw(log_probs, rows.place, step) if self.temperature else log_probs.argmax(-1)
            kept[rows.place, step] = log_probs.gather(1, token.unsqueeze(1)).squeeze(1)
            for row, drawn in enumerate(token.tolist()):  # the only synchronisation with the device in a step
                if going[row]:
                    response = responses[live[row]]
                    response.append(drawn)
                    going[row] = not ends(prompts[live[row]], response, self.end_ids, until)
            if not any(going) or step + 1 == self.max_tokens:
                break
            if sum(going) < LEAVE * len(going):
                stay = closed_up(going)
                rows.keep(stay)
                token = token[torch.tensor(stay, device=device)]
                live, going = [live[row] for row in stay], [True] * len(stay)
        return responses, [row[: len(one)] for row, one in zip(kept.tolist(), responses, strict=True)]


def ends(prompt: Sequence[int], response: Sequence[int], end_ids: Sequence[int], until: Reader | None) -> bool:
    """Whether a response ends with its last token: an end token, or the end of its thinking with a reader ``until``."""
    if response[-1] in end_ids:
        return True
    return until is not None and response[-1] in until.closing and until.has_thought(prompt, response)


def _begin(prefixes: PrefixCache, texts: Sequence[Sequence[int]], more: int) -> Rows:
    """Makes the rows that continue the given texts, one for each, with a cache that has room for ``more`` tokens."""
    cache = prefixes.cache(texts, more)
    layer: Any = cache.layers[0]
    width, device = cache.get_seq_length(), layer.keys.device
    length = torch.tensor([len(text) for text in texts], device=device)
    column = torch.arange(width + more, device=device)
    visible = (column < length.unsqueeze(1)) | (column >= width)
    return Rows(torch.arange(len(texts), device=device), visible, length, cache)


def _next(model: torch.nn.Module, rows: Rows, token: torch.Tensor, attention: str) -> torch.Tensor:
    """Returns the logits ``(n, V)`` after one more token per row."""
    length = rows.cache.get_seq_length() + 1
    output = model(
        input_ids=token.unsqueeze(1),
        attention_mask=as_attention_mask(rows.visible[:, None, None, :length], attention),
        position_ids=rows.position.unsqueeze(1),
        **{CACHE_NAME: rows.cache},
        use_cache=True,
    )
    rows.position = rows.position + 1
    return output.logits[:, -1]


# A model with fixed weights, without a trainer


logger: Any = logging.get_logger(__name__)
PLAIN = {"top_p": (None, 1.0), "top_k": (None, 0), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
"""Values of sampling options that leave the model's distribution unchanged."""

_SHAPES_NOTHING = re.compile("_|(bos|eos|pad|decoder_start)_|transformers|use_cache|cache|max_|do_sample|output|return")
_COUNTS = ("top_k", "no_repeat_ngram_size", "min_new_tokens", "min_length")  # of which 1 is not neutral


def by_options_alone(model: Any) -> AbstractContextManager[None]:
    """Takes a model's own ``generation_config`` away while the context is open: ``generate`` would take from it all
    that its caller leaves open."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return patched(inner, generation_config=GenerationConfig())


def tell_left_out(model: Any, options: Mapping[str, Any]) -> None:
    """Says once what a model's own ``generation_config`` would change in sampling and these options don't."""
    own = model.generation_config.to_diff_dict().items()
    shaping = [(name, value) for name, value in own if value and not _SHAPES_NOTHING.match(name)]
    changed = [one for one in shaping if (one[1] != 1 or one[0] in _COUNTS) and options.get(one[0]) != one[1]]
    told = ", ".join(f"{name}={value!r}" for name, value in changed)
    if told:
        logger.warning_once(f"the model's generation_config ({told}) shapes no sampling: only the run's own options do")


def shares_prompts(model: PreTrainedModel) -> bool:
    """Returns whether equal prompts of this model may be encoded once."""
    return why_plain(model.config, attention_of(model)) is None


def plain_sampler(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    end_ids: Sequence[int],
    options: Mapping[str, Any],
    max_tokens: int,
    batch_size: int,
) -> BatchSampler:
    """Makes a sampler of a model with fixed weights.

    Where the model and the options allow it, `LoopSampler` samples and encodes equal prefixes of prompts once.
    Otherwise transformers' ``generate`` samples.

    Args:
        end_ids: a response ends with one of them, or after ``max_tokens``.
        options: sampling options, ``temperature`` and those of `PLAIN`.
        batch_size: number of responses side by side; the loop takes as many as one call has.
    """
    tell_left_out(model, options)
    if any(options.get(name) not in values for name, values in PLAIN.items()) or not shares_prompts(model):
        return ModelGenerator(model, tokenizer, end_ids, max_tokens=max_tokens, batch_size=batch_size, **options)
    return LoopSampler(PrefixCache(model, tokenizer.pad_token_id), options["temperature"], max_tokens, end_ids)


class ModelGenerator:
    """A transformers model as a `BatchSampler`.

    Args:
        tokenizer: pads prompts on the left.
        batch_size: prompts of one call of ``generate``.
        options: of `PLAIN`, as in [`~trl.GRPOConfig`]. The model's own ``generation_config`` is ignored.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Sequence[int],
        temperature: float,
        max_tokens: int,
        batch_size: int = 64,
        **options: Any,
    ):
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        self.end_ids = list(end_ids)
        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, **options}
        self._options = GenerationConfig(
            **(sampled if temperature > 0 else {"repetition_penalty": options.get("repetition_penalty")}),
            max_new_tokens=max_tokens,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=self.end_ids,
            pad_token_id=tokenizer.pad_token_id,
        )

    @torch.no_grad()
    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        responses: list[list[int]] = []
        for first in range(0, len(prompts), self._batch_size):
            part = [list(prompt) for prompt in prompts[first : first + self._batch_size]]
            inputs: Any = self._tokenizer.pad(
                {"input_ids": part}, padding=True, padding_side="left", return_tensors="pt"
            )
            inputs = {name: inputs[name].to(self._model.device) for name in ("input_ids", "attention_mask")}
            generate: Any = self._model.generate
            with by_options_alone(self._model):
                sampled = generate(**inputs, generation_config=self._options)[:, inputs["input_ids"].size(1) :]
            responses += [self._cut(row) for row in sampled.tolist()]
        return Responses(responses, None)

    def _cut(self, tokens: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(tokens) if token in self.end_ids), len(tokens) - 1)
        return tokens[: end + 1]
