"""Compares the scripted player with random play on the same tasks, until the difference in reward is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.checks.findings import Finding
from alignopsd_trl.own_task.playing import FAILED, PlayedEpisode
from alignopsd_trl.statistics import LEAST_CLUSTERS, Interval, for_several, mean

RANDOM, PLAYER = "random play", "scripted player"
Played = Mapping[str, Sequence[PlayedEpisode]]

MOST = 512  # tasks at most, unless the first comparison has more
LOOKS = 6  # comparisons: after 16 tasks, 32, ..., `MOST`; the interval holds for all comparisons at once
SECONDS = 20.0  # limit of play; no part begins that would end later
SMALL = 0.1  # share of the range of rewards; a difference that is surely smaller counts as none
LEAST = 64  # tasks needed to conclude that there is no difference; on fewer, equal rewards may be chance
WINLESS = 32  # episodes without a win after which play ends


@dataclass(frozen=True)
class Difference:
    """The scripted player's reward minus random play's, paired by task.

    Args:
        interval: 95 % interval of the mean difference; its ends are NaN with too few tasks.
        means: mean rewards of random play and of the player.
        tasks: number of tasks that both played.
        small: a difference below this counts as none.
    """

    interval: Interval
    means: tuple[float, float]
    tasks: int
    small: float

    @property
    def none(self) -> bool:
        return self.tasks >= LEAST and -self.small < self.interval.low <= self.interval.high < self.small

    @property
    def known(self) -> bool:
        return self.none or self.interval.low > 0 or self.interval.high < 0

    def __str__(self) -> str:
        return f"{self.interval:+.3g} on {self.tasks} tasks"


def difference(played: Played) -> Difference | None:
    """Returns the difference so far; `None` if there is no pair of episodes, or if all rewards are equal."""
    both = zip(played.get(RANDOM, ()), played.get(PLAYER, ()), strict=False)
    pairs = [(a.reward, b.reward) for a, b in both if FAILED not in (a.stop, b.stop)]
    rewards = [reward for pair in pairs for reward in pair]
    if len(set(rewards)) < 2:
        return None
    found = mean([scripted - at_random for at_random, scripted in pairs])
    interval = Interval(found.value, found.value - found.half, found.value + found.half)
    interval = for_several(interval, LOOKS, len(pairs)) if len(pairs) >= LEAST_CLUSTERS else Interval(found.value)
    at_random, scripted = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    return Difference(interval, (at_random, scripted), len(pairs), SMALL * (max(rewards) - min(rewards)))


def play_on(
    play: Callable[[str, Sequence[Any]], list[PlayedEpisode]],
    players: Sequence[str],
    rows: Sequence[Any],
    first: int,
    hopeless: Callable[[], bool],
) -> dict[str, list[PlayedEpisode]]:
    """Lets the players play ``first`` rows, then doubles the rows until the difference is known or time is up.

    Args:
        play: plays the given rows as one of the ``players``.
        hopeless: returns whether a finding makes more play useless.
    """
    played: dict[str, list[PlayedEpisode]] = {who: [] for who in players}
    begun, count = time.monotonic(), min(first, len(rows))
    while True:
        for who, episodes in played.items():
            episodes += play(who, rows[len(episodes) : count])
        taken = time.monotonic() - begun
        if hopeless() or _settled(played) or count == len(rows) or 2 * taken > SECONDS:
            return played
        count = min(2 * count, len(rows))


def _settled(played: Played) -> bool:
    """Returns whether more episodes are of no use."""
    scripted = played.get(PLAYER, ())
    if not scripted or any(one.stop == FAILED for part in played.values() for one in part):
        return True
    if winless(scripted):
        return len(scripted) >= WINLESS
    found = difference(played)
    return found is None or found.known


def winless(scripted: Sequence[PlayedEpisode]) -> bool:
    """Returns whether the player never won or, if wins are unknown, never got a reward above 0."""
    whole = [one for one in scripted if one.stop != FAILED]
    return bool(whole) and not any(one.won or (one.won is None and one.reward > 0) for one in whole)


def findings(played: Played) -> Iterator[Finding]:
    """Yields a finding if the player never wins, is no better than chance, or can't be told from chance."""
    scripted = [one for one in played.get(PLAYER, ()) if one.stop != FAILED]
    if winless(scripted):
        yield Finding(
            "player",
            f"the scripted player won none of {len(scripted)} episodes: there is nothing to demonstrate, and what good "
            "play earns can't be checked; mend the player, or Step.won if it is never true",
        )
    found = difference(played)
    if found is None or found.interval.low > 0:
        return
    means = f"its reward, {found.means[1]:.3g} on average, "
    if not found.known:
        yield Finding(
            "player",
            f"{means}can't be told from random play's, {found.means[0]:.3g} (difference {found}); "
            f"more tasks, or --episodes {4 * found.tasks}, would tell more",
            ruins=False,
        )
        return
    place = "no better than" if found.none else "below"
    yield Finding(
        "player",
        f"{means}is {place} random play's, {found.means[0]:.3g} (difference {found}): where good play earns no more "
        "there is nothing to learn; mend the player, or reward what it does better",
        ruins=False,
    )
