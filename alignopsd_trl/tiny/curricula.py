"""What each tiny policy is made of: environment, limits, the episodes of its demonstrations and who plays them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from alignopsd_trl.tiny import explorers, readers, shoppers
from alignopsd_trl.tiny.demonstrations import Play
from environments import alfworld_tiny, searchqa_tiny, webshop_tiny
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
_SEARCHQA = (
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "Step 1:<search>",
    "Step 2:<search>",
    "Step 3:<search>",
    "</search> <information>",
    '</search> <information>Doc 1(Title: "',
    "</information>\n\n",
    "</think>\n<search>",
    "</think>\n<answer>",
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
    """How a policy is made. ``phrases`` are the tokens of more than a word, ``pieces`` the patterns of words of more
    than a token."""

    setting: Setting
    episodes: Episodes
    play: Play
    phrases: tuple[str, ...]
    pieces: tuple[tuple[str, ...], ...] = ()


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
    "searchqa_tiny": Curriculum(
        Setting(
            environment="searchqa_tiny",
            environment_options=searchqa_tiny.OPTIONS,
            skill_bank="searchqa",
            panel="test",
            max_prompt_length=320,
            max_completion_length=32,
            skill_tokens=64,
        ),
        readers.episodes,
        readers.play,
        (*_THINKING, *_SEARCHQA),
        readers.pieces(),
    ),
}
