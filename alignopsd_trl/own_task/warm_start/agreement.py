"""Compares a policy with the player on held-out turns, and names measured causes where they differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from statistics import mean, median
from typing import Any

from torch import Tensor

NEEDED = 0.5
"""Agreement of responses below which causes are named."""
RISE, FALL = 0.03, 0.05
"""Agreement that rises, and loss that falls, by at least this share since two evaluations ago still improves."""
FOLLOWED = 0.9
"""Share of right actions after the player's own thoughts below which actions do not follow from these."""
LONG = 64
"""Tokens of a long response."""
ACTION_BEGINS = ("<action>", "</think>")
WITH_SKILL = "with the skill"
VIEWS = {WITH_SKILL: True, "without it": False}


@dataclass(frozen=True)
class Turn:
    """A held-out turn. Each token of the response was predicted from the prompt and the player's tokens before it.

    Attributes:
        prompt, response: token ids.
        right: whether the likeliest token is the player's, for each token of the response.
        losses: cross-entropy of each token.
        skilled: whether the prompt holds the skill.
    """

    prompt: list[int]
    response: list[int]
    right: list[bool]
    losses: list[float]
    skilled: bool

    @property
    def agrees(self) -> bool:
        """Whether the policy would write exactly this response, if it takes the likeliest tokens."""
        return all(self.right)


def turns_of(ids: Tensor, chosen: Tensor, losses: Tensor, right: Tensor, skilled: Sequence[bool]) -> Iterator[Turn]:
    """Yields a turn for each run of chosen tokens.

    Args:
        ids, chosen: tokens, and which of them are of responses, of shape `(B, T)`.
        losses, right: cross-entropy and correctness of the chosen tokens, in their order.
        skilled: of each row.
    """
    predicted = zip(right.tolist(), losses.tolist(), strict=True)
    for tokens, marks, kind in zip(ids.tolist(), chosen.tolist(), skilled, strict=True):
        for mark, run in groupby(range(len(marks)), marks.__getitem__):
            if mark:
                places = list(run)
                hits, costs = zip(*islice(predicted, len(places)), strict=True)
                response = tokens[places[0] : places[-1] + 1]
                yield Turn(tokens[: places[0]], response, list(hits), list(costs), kind)


class Agreement:
    """The comparison of one evaluation.

    Args:
        turns: the held-out turns.
        tokenizer: the policy's, which decodes them.
    """

    def __init__(self, turns: Sequence[Turn], tokenizer: Any):
        self.turns, self.tokenizer = turns, tokenizer
        self.loss = mean(loss for one in turns for loss in one.losses)
        self.responses = mean(one.agrees for one in turns)
        self.actions = self._right_actions(turns)
        self.views = {
            name: mean(one.agrees for one in part)
            for name, kind in VIEWS.items()
            if (part := [one for one in turns if one.skilled is kind])
        }

    def told(self) -> str:
        """Returns the figures in one line."""
        apart = ", ".join(f"{share:.0%} {name}" for name, share in self.views.items())
        views = f" ({apart})" if len(self.views) > 1 else ""
        acts = f", of actions after its thoughts {self.actions:.0%}" if self.actions != self.responses else ""
        return f"held-out loss {self.loss:.3f}, {self.responses:.0%} of responses are the player's{views}{acts}"

    @property
    def low(self) -> bool:
        """Whether a policy like this would hardly win."""
        return min(self.views.values()) < NEEDED

    @property
    def unfollowed(self) -> str:
        """What to change if actions often don't follow from the player's thoughts, with the skill where turns have it,
        since a player may guess without; an empty text if they do, or if there are no thoughts."""
        turns = [one for one in self.turns if one.skilled] or self.turns
        actions = self._right_actions(turns)
        text = (
            f"even after the player's own thoughts {1 - actions:.0%} of the actions are wrong: let each "
            "conclusion stand right after its reason, as in 'wanted brass, here silver: leave'; count rather than add"
        )
        return text if mean(one.agrees for one in turns) < actions < FOLLOWED else ""

    def improves_on(self, before: Agreement) -> bool:
        """Returns whether agreement rises or the loss falls clearly."""
        return self.responses > before.responses + RISE or self.loss < (1 - FALL) * before.loss

    def causes(self, epochs: float, improving: bool) -> str:
        """Returns what is in the policy's way, and what to change.

        Args:
            epochs: how often training has seen each turn.
            improving: whether the policy still improves.
        """
        return "; ".join(self._causes(epochs, improving)) or (
            "what it gets wrong can be copied from its prompts, but it can't tell what to copy: the player chooses by "
            "chance, or by something that no prompt or thought spells out"
        )

    def _causes(self, epochs: float, improving: bool) -> Iterator[str]:
        if improving and epochs < 1:
            yield f"it has seen {epochs:.0%} of the turns and still learns: raise --minutes or go on by --model FOLDER"
        if (tokens := median(len(one.response) for one in self.turns)) >= LONG:
            right = mean(hit for one in self.turns for hit in one.right)
            yield f"a response has {tokens:.0f} tokens, of which {right:.0%} are right: shorten thoughts and actions"
        skilled, unskilled = (self.views.get(name, 0.0) for name in VIEWS)
        if skilled >= NEEDED:
            yield (
                f"without the skill the player's choices can't be told from its prompts ({unskilled:.0%}): let it be "
                "careful there too, unless this is what training is to find out"
            )
        yield from self._hidden([one for one in self.turns if one.skilled >= (skilled >= NEEDED)])

    def _hidden(self, turns: Sequence[Turn]) -> Iterator[str]:
        """Yields the cause of words that neither stand in the prompt nor in most responses."""
        said = Counter(word for one in turns for word in self._words(one.response))
        form = {word for word, times in said.items() if times > len(turns) / 2}
        wrong = [one for one in turns if not one.agrees]
        words = [word for one in wrong if (word := self._first_wrong(one)) not in form | self._words(one.prompt)]
        if len(words) > len(wrong) / 2:
            named = ", ".join(repr(word) for word, _ in Counter(words).most_common(3))
            yield (
                f"in {len(words) / len(wrong):.0%} of its errors the first wrong word, such as {named}, is not in the "
                "prompt: show there what decides, or think with the prompt's words"
            )

    def _first_wrong(self, turn: Turn) -> str:
        """Returns the first word of the response that the policy would not write."""
        place = len(self._text(turn.response[: turn.right.index(False)]))
        return next((one[0] for one in re.finditer(r"\w+", self._text(turn.response)) if one.end() > place), "")

    def _words(self, ids: list[int]) -> set[str]:
        return {"", *re.findall(r"\w+", self._text(ids))}

    def _right_actions(self, turns: Sequence[Turn]) -> float:
        """Returns the share of turns whose action the policy would write after the player's own thoughts."""
        return mean(all(one.right[self._action(one) :]) for one in turns)

    def _action(self, turn: Turn) -> int:
        """Returns the place of the action's first token: 0 if no tag tells it from a thought."""
        tag = next((one for one in ACTION_BEGINS if one in self._text(turn.response)), "")
        return next(n for n in range(len(turn.response) + 1) if tag in self._text(turn.response[:n]))

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)
