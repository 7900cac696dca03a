"""What each tiny policy is made of: environment, limits, the episodes of its demonstrations and who plays them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from alignopsd_trl.launch.presets import preset
from environments import alfworld_tiny, searchqa_tiny, webshop_tiny
from environments.base import Suite, TextEnvironment
from tools.tiny_policies import explorers, readers, shoppers
from tools.tiny_policies.demonstrations import Play, every_task

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


def _setting(environment: str, options: Mapping[str, Any], skill_bank: str) -> Setting:
    """A policy is made for the panel and the limits of its recipe."""
    chosen = preset(environment)
    limits = {name: chosen[name] for name in ("max_prompt_length", "max_completion_length", "skill_tokens")}
    return Setting(environment, options, skill_bank, chosen.get("panel", "test"), **limits)


CURRICULA = {
    "webshop_tiny": Curriculum(
        _setting("webshop_tiny", {**webshop_tiny.OPTIONS, "reward": "won", "validity": "format"}, "webshop"),
        every_task,
        shoppers.play,
        (*_THINKING, *_WEBSHOP),
    ),
    "alfworld_tiny": Curriculum(
        _setting("alfworld_tiny", alfworld_tiny.OPTIONS, "alfworld"),
        explorers.episodes,
        explorers.play,
        (*_THINKING, "<action>", "</action>", "go to ", "You arrive at ", "you see "),
    ),
    "searchqa_tiny": Curriculum(
        _setting("searchqa_tiny", searchqa_tiny.OPTIONS, "searchqa"),
        readers.episodes,
        readers.play,
        (*_THINKING, *_SEARCHQA),
        readers.pieces(),
    ),
}
