"""What each tiny policy is made of: environment, limits, the episodes of its demonstrations and who plays them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from alignopsd_trl.tiny import explorers, shoppers
from alignopsd_trl.tiny.demonstrations import Play
from environments import alfworld_tiny, webshop_tiny
from environments.base import Suite, TextEnvironment

Episodes = Callable[[Suite, int, int], Iterator[tuple[TextEnvironment, Mapping[str, Any]]]]
"""(suite, passes, seed) -> what is played, in order."""

_THINKING = ("<think>", "</think>")
_WEBSHOP = (
    "<action>",
    "</action>",
    "search[",
    "click[",
    "' [SEP] '",
    "' [SEP] '$",
    "Back to Search",
    "back to search",
    "< Prev",
    "< prev",
    "Next >",
    "next >",
    "buy now",
    " (Total results: ",
    ", and price lower than ",
    "' [SEP] 'Rating: N.A.' [SEP] 'Description' [SEP] 'Features' [SEP] 'Reviews' [SEP] 'Buy Now'",
)


@dataclass(frozen=True)
class Setting:
    """What a policy was made for; recorded beside its weights. Lengths are in tokens."""

    environment: str
    environment_options: Mapping[str, Any]
    skill_bank: str
    panel: str
    max_prompt_length: int
    max_completion_length: int
    skill_tokens: int
    encoder: str = "lexical"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Curriculum:
    """How a policy is made. ``phrases`` are the tokens of more than a word."""

    setting: Setting
    episodes: Episodes
    play: Play
    phrases: tuple[str, ...]


def every_task(suite: Suite, passes: int, seed: int) -> Iterator[tuple[TextEnvironment, Mapping[str, Any]]]:
    """``passes`` episodes on every training task, in a drawn order."""
    draw, rows, environment = random.Random(seed), list(suite.tasks("train")), suite.factory()
    for _ in range(passes):
        for row in draw.sample(rows, len(rows)):
            yield environment, row


CURRICULA = {
    "webshop_tiny": Curriculum(
        Setting(
            environment="webshop_tiny",
            environment_options={**webshop_tiny.OPTIONS, "reward": "won", "validity": "format"},
            skill_bank="webshop",
            panel="test",
            max_prompt_length=256,
            max_completion_length=40,
            skill_tokens=64,
        ),
        every_task,
        shoppers.play,
        (*_THINKING, *_WEBSHOP),
    ),
    "alfworld_tiny": Curriculum(
        Setting(
            environment="alfworld_tiny",
            environment_options=alfworld_tiny.OPTIONS,
            skill_bank="alfworld",
            panel="valid_seen",
            max_prompt_length=384,
            max_completion_length=48,
            skill_tokens=64,
        ),
        explorers.episodes,
        explorers.play,
        (*_THINKING, "<action>", "</action>", "go to ", "You arrive at ", "you see "),
    ),
}
