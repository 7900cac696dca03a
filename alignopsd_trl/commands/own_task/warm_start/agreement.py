"""Compares a policy with the player on held-out turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from statistics import mean
from typing import Any

from torch import Tensor

ACTION_BEGINS = ("<action>", "</think>")
WITH_SKILL = "with the skill"
VIEWS = {WITH_SKILL: True, "without it": False}


@dataclass(frozen=True)
class HeldOutTurn:
    """A held-out turn. Each token of the response was predicted from the prompt and the player's tokens before it.

    Attributes:
        right: whether the likeliest token is the player's, for each token of the response.
        losses: cross-entropy of each token.
        skilled: whether the prompt holds the skill.
    """

    response: list[int]
    right: list[bool]
    losses: list[float]
    skilled: bool

    def action(self, tokenizer: Any) -> int:
        """Returns the place of the action's first token: 0 if no tag tells it from a thought."""
        text = tokenizer.decode(self.response)
        tag = next((one for one in ACTION_BEGINS if one in text), "")
        return next(n for n in range(len(self.response) + 1) if tag in tokenizer.decode(self.response[:n]))


def turns_of(
    ids: Tensor, chosen: Tensor, losses: Tensor, right: Tensor, skilled: Sequence[bool]
) -> Iterator[HeldOutTurn]:
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
                yield HeldOutTurn(tokens[places[0] : places[-1] + 1], list(hits), list(costs), kind)


class Agreement:
    """The comparison of one evaluation.

    Attributes:
        loss: cross-entropy of a token.
        responses: share of the turns whose response the policy would write, if it takes the likeliest tokens.
        actions: share of the turns whose action it would write after the player's own thoughts.
        views: ``responses`` with the skill and without it.
    """

    def __init__(self, turns: Sequence[HeldOutTurn], tokenizer: Any):
        self.loss = mean(loss for one in turns for loss in one.losses)
        self.responses = mean(all(one.right) for one in turns)
        self.actions = mean(all(one.right[one.action(tokenizer) :]) for one in turns)
        views = {name: [all(one.right) for one in turns if one.skilled is kind] for name, kind in VIEWS.items()}
        self.views = {name: mean(part) for name, part in views.items() if part}

    def told(self) -> str:
        """Returns the figures in one line."""
        apart = ", ".join(f"{share:.0%} {name}" for name, share in self.views.items())
        views = f" ({apart})" if len(self.views) > 1 else ""
        acts = f", of actions after its thoughts {self.actions:.0%}" if self.actions != self.responses else ""
        return f"held-out loss {self.loss:.3f}, {self.responses:.0%} of responses are the player's{views}{acts}"
