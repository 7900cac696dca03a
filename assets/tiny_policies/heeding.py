"""Demonstrations of players who read their skill: half of the episodes without one, and what is done under others.

Their player is made with the kinds of skill that it heeds, and responds to one view at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.base import Prompt, TextEnvironment, View
from alignopsd_trl.skills import Retrieved, SkillBank, render
from assets.tiny_policies.demonstrations import COUNTERPARTS, Demonstration, episode

NO_SKILL = 0.5  # of the episodes
ANY_LENGTH = 10_000  # tokens: a block of drawn skills is never shortened


def heeding(
    episodes: Iterable[tuple[TextEnvironment, Mapping[str, Any]]],
    player: Callable[[Sequence[str], random.Random], Any],
    kinds: Sequence[str],
    bank: SkillBank,
    draw: random.Random,
) -> Iterator[Demonstration]:
    """Every turn of the episodes. Half of them are shown without a skill, and every fourth of their turns once more
    with one and with what a player who heeds it answers there. Every other skill is of the task's kind and the rest of
    any kind, so that the policy learns to heed what it reads.

    Args:
        episodes: what is played, as environment and dataset row.
        player: (kinds of skill that it heeds, draw) -> something whose ``answer`` responds to a view.
        kinds: of tasks and of skills.
    """

    def some_kind(row: Mapping[str, Any]) -> str:
        return row["category"] if draw.random() < 0.5 else draw.choice(kinds)

    for environment, row in episodes:
        heeds = () if draw.random() < NO_SKILL else (some_kind(row),)
        views, responses, _ = episode(environment, row, player(heeds, draw).answer)
        for view, response in zip(views, responses, strict=True):
            yield under(heeds, environment.prompt, view, response, bank, draw)
            if not heeds and draw.random() < COUNTERPARTS:
                other = (some_kind(row),)
                yield under(other, environment.prompt, view, player(other, draw).answer(view), bank, draw)


def under(
    heeds: Sequence[str], prompt: Prompt, view: View, response: str, bank: SkillBank, draw: random.Random
) -> Demonstration:
    """A response under skills of the first kind, or under none."""
    return Demonstration(prompt.render(view, guidance(bank, heeds[0], draw) if heeds else ""), response)


def guidance(bank: SkillBank, kind: str, draw: random.Random) -> str:
    """One or all of the skills of a kind, in any order, and sometimes a general one behind them."""
    skills = next(one.skills for one in bank.task_types if one.key == kind)
    chosen = draw.sample(skills, draw.randint(1, len(skills)))
    general = bank.general if draw.random() < 0.5 else ()
    return render(Retrieved((kind,), tuple(chosen), (0.0,) * len(chosen), general, ()), len, ANY_LENGTH).text
