"""Sampling with the training process's own model, where no engine serves it.

What prompts begin with alike is encoded once, the cache has room for what comes instead of being copied at every token,
rows that have ended leave the batch, and the log-probs of the sampled tokens are kept. Tokens come from the model's
distribution at a temperature; for other ways to sample, and for evaluations, there is transformers' ``generate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import Cache

from alignopsd_trl.policy.packing import as_attention_mask
from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.reading import Reader

LEAVE = 7 / 8  # ended rows leave the batch when fewer than this share of it are live


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

    def keep(self, live: torch.Tensor) -> torch.Tensor:
        """Leaves out the rows that are not live ``(n,)``. The last live ones take their places, so that few are copied.

        Returns:
            Which row each one was.
        """
        every = torch.arange(len(live), device=live.device)
        count = int(live.sum())
        chosen = every[:count].masked_scatter(~live[:count], every[count:][live[count:]])
        places = (~live[:count]).nonzero().squeeze(1)
        self.place, self.visible, self.position = self.place[chosen], self.visible[chosen], self.position[chosen]
        for layer in self.cache.layers:
            layer.move(chosen[places], places, count)
        return chosen


def draw(log_probs: torch.Tensor, place: torch.Tensor, step: int) -> torch.Tensor:
    """One token a row ``(n,)`` from ``(n, V)`` log-probs. ``place`` and ``step`` say which token of which response:
    random numbers go to responses in order, wherever their rows are."""
    numbers = torch.rand(len(log_probs), dtype=torch.float64, device=log_probs.device)
    return draw_at(log_probs, numbers[place.argsort().argsort()])


def draw_at(log_probs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """One token a row ``(n,)`` from ``(n, V)`` log-probs, by numbers ``(n,)`` between 0 and 1."""
    mass = log_probs.double().exp().cumsum(-1)
    point = numbers.unsqueeze(1) * mass[:, -1:]
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
    prefixes: PrefixCache | None = None,
    until: Reader | None = None,
) -> tuple[list[list[int]], list[list[float]]]:
    """One response per prompt.

    Args:
        model: a causal language model that is proven for packed rows (`packing.why_plain`), not split over processes.
        end_ids: a response ends with one of them, or after ``max_tokens``.
        attention: name of the model's attention implementation.
        budget: padded tokens per forward over prompts.
        prefixes: of this model, with what it made of earlier prompts.
        until: who reads the responses, where what they think is all that is wanted: they end with that.

    Returns:
        The responses, end token included, and the float32 log-probs of their tokens at the temperature.
    """
    device = model.device
    ends = torch.tensor(list(end_ids), device=device)
    tokens = torch.full((len(prompts), max_tokens), pad_id, device=device)
    kept = torch.zeros((len(prompts), max_tokens), device=device)
    length = torch.full((len(prompts),), max_tokens, device=device)
    closing = torch.tensor(until.closing if until is not None else [], device=device)
    prefixes = prefixes or PrefixCache(model, pad_id, attention, budget)
    rows = _begin(prefixes, [prompt[:-1] for prompt in prompts], max_tokens)
    token = torch.tensor([prompt[-1] for prompt in prompts], device=device)
    for step in range(max_tokens):
        logits = _next(model, rows, token, attention)
        log_probs = (logits.float() / temperature).log_softmax(-1)
        token = draw(log_probs, rows.place, step)
        tokens[rows.place, step] = token
        kept[rows.place, step] = log_probs.gather(1, token.unsqueeze(1)).squeeze(1)
        ended = torch.isin(token, ends)
        if until is not None:
            closed = torch.isin(token, closing).nonzero().squeeze(1)
            said = tokens[rows.place[closed], : step + 1].tolist()
            thought = map(until.has_thought, [prompts[place] for place in rows.place[closed].tolist()], said)
            ended[closed] |= torch.tensor(list(thought), dtype=torch.bool, device=device)
        ended &= length[rows.place] == max_tokens
        length[rows.place[ended]] = step + 1
        live = length[rows.place] == max_tokens
        count = int(live.sum())
        if count == 0 or step + 1 == max_tokens:
            break
        if count < LEAVE * len(live):
            token = token[rows.keep(live)]
    lengths = length.tolist()
    answers = [row[:end] for row, end in zip(tokens.tolist(), lengths, strict=True)]
    return answers, [row[:end] for row, end in zip(kept.tolist(), lengths, strict=True)]


def _begin(prefixes: PrefixCache, texts: Sequence[Sequence[int]], room: int) -> Rows:
    """A row behind each text, with room for more tokens."""
    cache = prefixes.cache(texts, room)
    width, device = cache.get_seq_length(), cache.layers[0].keys.device
    length = torch.tensor([len(text) for text in texts], device=device)
    column = torch.arange(width + room, device=device)
    visible = (column < length.unsqueeze(1)) | (column >= width)
    return Rows(torch.arange(len(texts), device=device), visible, length, cache)


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
