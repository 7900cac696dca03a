"""What each tiny policy is made of: environment, limits, the episodes of its demonstrations and who plays them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from alignopsd_trl.commands.launch.presets import preset
from alignopsd_trl.environments import alfworld_tiny, searchqa_hops, searchqa_tiny, webshop_tiny, webshop_trips
from alignopsd_trl.environments.base import Suite, TextEnvironment
from alignopsd_trl.skills import Retrieved, SkillBank, render
from assets.tiny_policies import explorers, hoppers, housekeepers, readers, shoppers, situated
from assets.tiny_policies.demonstrations import Demonstration, Play, demonstrations, every_task
from assets.tiny_policies.heeding import ANY_LENGTH

Episodes = Callable[[Suite, int, int], Iterator[tuple[TextEnvironment, Mapping[str, Any]]]]
"""(suite, passes, seed) -> what is played, in order."""
Shown = Callable[[Suite, SkillBank, int, int], Iterator[Demonstration]]
"""(suite, bank, passes, seed) -> the demonstrations, in order."""

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
    encoder: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Curriculum:
    """How a policy is made. ``phrases`` are the tokens of more than a word, ``pieces`` the patterns of words of more
    than a token, ``training`` what its training's flags are where they are not given, ``then`` the curriculum of the
    round that goes on from there."""

    setting: Setting
    demonstrations: Shown
    phrases: tuple[str, ...]
    pieces: tuple[tuple[str, ...], ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    then: str = ""


def by_care(episodes: Episodes, play: Play) -> Shown:
    """Demonstrations of players who are careful under any skill."""
    return lambda suite, bank, passes, seed: demonstrations(
        episodes(suite, passes, seed), play, partial(guidance, bank), seed
    )


def guidance(bank: SkillBank, task_text: str, draw: random.Random) -> str:
    """A block of one skill from anywhere in the bank, so that what the policy learns to heed does not depend on the
    rule of retrieval."""
    skills = [*bank.general, *(skill for kind in bank.task_types for skill in kind.skills)]
    return render(Retrieved((), (draw.choice(skills),), (0.0,), (), ()), len, ANY_LENGTH).text


def _setting(environment: str, options: Mapping[str, Any], skill_bank: str) -> Setting:
    """A policy is made for the panel and the limits of its recipe."""
    chosen = preset(environment)
    taken = ("max_prompt_length", "max_completion_length", "skill_tokens", "encoder")
    limits = {name: chosen[name] for name in taken}
    return Setting(environment, options, skill_bank, chosen.get("panel", "test"), **limits)


def _flags(seed: int, **flags: float) -> Mapping[str, Any]:
    """Of a round of a policy that is made in several."""
    return {**flags, "seed": seed}


CURRICULA = {
    "webshop_tiny": Curriculum(
        _setting("webshop_tiny", {**webshop_tiny.OPTIONS, "reward": "won", "validity": "format"}, "webshop"),
        by_care(every_task, shoppers.play),
        (*_THINKING, *_WEBSHOP),
    ),
    "webshop_trips": Curriculum(
        _setting("webshop_trips", {**webshop_trips.OPTIONS, "reward": "won", "validity": "format"}, "webshop_trips"),
        situated.demonstrations,
        (*_THINKING, "</think><action>", *_WEBSHOP, "' [SEP] 'Request ", *situated.PHRASES),
        training=_flags(0, passes=2, steps=1200, batch=32, learning_rate=2e-3),
    ),
    "searchqa_hops": Curriculum(
        _setting("searchqa_hops", searchqa_hops.OPTIONS, "searchqa_hops"),
        partial(hoppers.demonstrations, hoppers.elsewhere),
        (*_THINKING, *_SEARCHQA, *hoppers.PHRASES),
        training=_flags(0, passes=2, steps=1200, batch=16, learning_rate=2.5e-3, layers=3),
    ),
    "alfworld_tiny": Curriculum(
        _setting("alfworld_tiny", alfworld_tiny.OPTIONS, "alfworld"),
        by_care(explorers.episodes, explorers.play),
        (*_THINKING, "<action>", "</action>", "go to ", "You arrive at ", "you see "),
    ),
    "alfworld_pairs": Curriculum(
        _setting("alfworld_pairs", {}, "alfworld_pairs"),
        housekeepers.demonstrations,
        (*_THINKING, "</think><action>", *housekeepers.PHRASES),
        training=_flags(0, passes=3, steps=1600, batch=32, learning_rate=3e-3, layers=3),
    ),
    "searchqa_tiny": Curriculum(
        _setting("searchqa_tiny", searchqa_tiny.OPTIONS, "searchqa"),
        by_care(readers.episodes, readers.play),
        (*_THINKING, *_SEARCHQA),
        readers.pieces(),
    ),
}


def _then(name: str, *rounds: tuple[Shown, Mapping[str, Any]]) -> None:
    """The rounds of training that follow a curriculum's own, each from where the one before it ended."""
    names = [name, *(f"{name}, round {number}" for number in range(2, len(rounds) + 2))]
    for before, following, (shown, training) in zip(names, names[1:], rounds, strict=False):
        CURRICULA[before] = replace(CURRICULA[before], then=following)
        CURRICULA[following] = replace(CURRICULA[name], demonstrations=shown, training=training, then="")


_then(
    "webshop_trips",
    (situated.demonstrations, _flags(1, passes=1, copies=4, steps=700, batch=32, learning_rate=2e-3)),
    (situated.demonstrations, _flags(2, passes=1, copies=5, actions=0.75, steps=600, batch=32, learning_rate=2e-3)),
    (situated.demonstrations, _flags(5, passes=1, copies=2, actions=0.2, steps=450, batch=32, learning_rate=1e-3)),
    (situated.demonstrations, _flags(6, passes=1, copies=3, actions=0.3, steps=450, batch=32, learning_rate=1e-3)),
)
_then(
    "searchqa_hops",
    (
        partial(hoppers.demonstrations, hoppers.elsewhere),
        _flags(1, passes=1, steps=600, batch=16, learning_rate=1.5e-3, layers=3),
    ),
    (
        partial(hoppers.demonstrations, hoppers.at_home),
        _flags(2, passes=1, steps=550, batch=16, learning_rate=2e-3, layers=3),
    ),
    (
        partial(hoppers.demonstrations, hoppers.at_home),
        _flags(3, passes=1, steps=480, batch=16, learning_rate=1.2e-3, layers=3),
    ),
)
_then(
    "alfworld_pairs",
    (housekeepers.contrasts, _flags(1, passes=2, steps=600, batch=24, learning_rate=2e-3, layers=3)),
    (housekeepers.contrasts, _flags(2, passes=2, steps=600, batch=24, learning_rate=2e-3, layers=3)),
    (housekeepers.contrasts, _flags(3, passes=2, steps=700, batch=28, learning_rate=2e-3, layers=3)),
)
