"""Speculative decoding: guesses the next tokens from earlier responses and lets the model verify several in one
forward.

Each token is drawn with its own random number, and a guessed token is accepted if it equals the drawn one. Responses
are therefore those of sampling token by token, up to rounding. Policies whose thinking follows a template need about a
fourth of the forwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Cache

from alignopsd_trl.policy.decoding import closed_up, draw_at, moved
from alignopsd_trl.policy.packing import as_attention_mask
from alignopsd_trl.policy.prefix_cache import PrefixCache, RoomyLayer

AHEAD = 4  # tokens that are guessed at a time
ALIKE = (6, 3)  # last tokens of a response by which what followed an earlier one is found
MOST = 500_000  # beginnings that are remembered
TRIAL, PAYS = 2000, 0.2  # guesses after which a lower share of right ones ends the guessing
BEGIN = (-1,) * ALIKE[0]  # stands before the first token of a response


class Guesses:
    """Guesses what follows the last tokens from the latest responses that had them, as long as guesses tend to be
    right."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], list[int]] = {}
        self._guessed = self._right = 0

    def after(self, written: Sequence[int]) -> list[int]:
        """Guesses up to `AHEAD` tokens; none where nothing is known or guesses cost more than they save.

        Args:
            written: `BEGIN` and a response so far.
        """
        if self._guessed > TRIAL and self._right < PAYS * self._guessed:
            return []
        found = (self._known.get(tuple(written[-count:])) for count in ALIKE)
        return next(filter(None, found), [])

    def count(self, guessed: int, right: int) -> None:
        self._guessed += guessed
        self._right += right

    def learn(self, response: Sequence[int]) -> None:
        if len(self._known) > MOST:
            self._known.clear()
        written = [*BEGIN, *response]
        for place in range(len(BEGIN), len(written)):
            for count in ALIKE:
                self._known[tuple(written[place - count : place])] = written[place : place + AHEAD]


class PlacedLayer(RoomyLayer):
    """A layer's cache whose rows have different lengths: new tokens go where `Columns` says."""

    def __init__(self, layer: RoomyLayer, columns: Columns):
        super().__init__(layer.buffers, 0)
        self._columns = columns

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, places = self._columns.rows, self._columns.places
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.transpose(1, 2)[rows, places] = new.transpose(1, 2)
        self._length = self._columns.shown
        self._show()
        return self.keys, self.values


class Columns:
    """Where the next tokens ``(n, s)`` of the live rows go."""

    def set(self, places: torch.Tensor) -> None:
        self.places, self.shown = places, int(places.max()) + 1
        self.rows = torch.arange(len(places), device=places.device).unsqueeze(1)

    def visible(self) -> torch.Tensor:
        """``(n, 1, s, T)``: every token sees its row up to itself."""
        every = torch.arange(self.shown, device=self.places.device)
        return (every <= self.places.unsqueeze(2)).unsqueeze(1)


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_tokens: int,
    end_ids: Sequence[int],
    pad_id: int,
    attention: str,
    prefixes: PrefixCache,
    guesses: Guesses,
) -> list[list[int]]:
    """One response per prompt, as [`decoding.sample`] gives them from other random numbers.

    Args:
        guesses: is asked, and learns the responses.
    """
    device, ends = model.device, set(end_ids)
    numbers = torch.rand((len(prompts), max_tokens), dtype=torch.float64, device=device)
    columns = Columns()
    begun = prefixes.cache([prompt[:-1] for prompt in prompts], max_tokens + AHEAD)
    cache = Cache(layers=[PlacedLayer(layer, columns) for layer in begun.layers])
    written = [list(BEGIN) for _ in prompts]
    position = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    live, token = list(range(len(prompts))), [prompt[-1] for prompt in prompts]
    while live:
        done = [len(written[row]) - len(BEGIN) for row in live]
        ahead = [guesses.after(written[row])[: max_tokens - 1 - past] for row, past in zip(live, done, strict=True)]
        width = max(map(len, ahead))
        rows = [[one, *more, *[pad_id] * (width - len(more))] for one, more in zip(token, ahead, strict=True)]
        ids = torch.tensor(rows, device=device)
        columns.set(position.unsqueeze(1) + torch.arange(width + 1, device=device))
        logits = model(
            input_ids=ids,
            attention_mask=as_attention_mask(columns.visible(), attention),
            position_ids=columns.places,
            past_key_values=cache,
            use_cache=True,
        ).logits
        log_probs = (logits.float() / temperature).log_softmax(-1).flatten(0, 1)
        index = torch.tensor(done, device=device).unsqueeze(1) + torch.arange(width + 1, device=device)
        chosen = numbers[torch.tensor(live, device=device).unsqueeze(1), index.clamp_max(max_tokens - 1)]
        drawn = draw_at(log_probs, chosen.flatten()).view_as(ids).tolist()
        taken = [_taken(*pair, ends) for pair in zip(drawn, ahead, strict=True)]
        guesses.count(sum(map(len, ahead)), sum(len(new) - 1 for new in taken))
        for row, new in zip(live, taken, strict=True):
            written[row] += new
        position = position + torch.tensor([len(new) for new in taken], device=device)
        token = [new[-1] for new in taken]
        going = [new[-1] not in ends and past + len(new) < max_tokens for new, past in zip(taken, done, strict=True)]
        if not all(going):
            stay = closed_up(going)
            moves = moved(stay, device)
            for layer in cache.layers:
                layer.move(*moves, len(stay))
            live, token = [live[row] for row in stay], [token[row] for row in stay]
            position = position[torch.tensor(stay, dtype=torch.int64, device=device)]
    responses = [row[len(BEGIN) :] for row in written]
    for response in responses:
        guesses.learn(response)
    return responses


def _taken(drawn: Sequence[int], ahead: Sequence[int], ends: set[int]) -> list[int]:
    """The drawn tokens up to the first wrong guess, or up to an end token."""
    for place, guess in enumerate(ahead):
        if drawn[place] != guess or drawn[place] in ends:
            return list(drawn[: place + 1])
    return list(drawn[: len(ahead) + 1])
