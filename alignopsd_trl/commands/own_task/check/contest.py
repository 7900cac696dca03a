"""Compares the scripted player with random play on the same tasks, until the difference in reward is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.checks.tasks import Finding, look
from alignopsd_trl.common.statistics import LEAST_CLUSTERS, Interval, for_several, mean
from alignopsd_trl.rollout.episode import Episode

RANDOM, PLAYER = "random play", "scripted player"
Played = Mapping[str, Sequence[Episode]]

MOST = 512  # tasks at most, unless the first comparison has more
LOOKS = 6  # comparisons: after 16 tasks, 32, ..., `MOST`; the interval holds for all comparisons at once
SECONDS = 20.0  # limit of play; no part begins that would end later


def difference(played: Played) -> Interval | None:
    """Returns the mean of the scripted player's reward minus random play's, paired by task, with its 95 % interval.
    `None` if there is no pair of episodes or all rewards are equal; the ends are NaN with too few pairs."""
    at_random, by_player = ([one.trajectory for one in played.get(who, ())] for who in (RANDOM, PLAYER))
    both = zip(at_random, by_player, strict=False)
    pairs = [(one.reward, scripted.reward) for one, scripted in both if not (one.failed or scripted.failed)]
    if len({reward for pair in pairs for reward in pair}) < 2:
        return None
    more = [scripted - at_random for at_random, scripted in pairs]
    found = mean(more)
    if len(more) < LEAST_CLUSTERS:
        return Interval(found.value)
    return for_several(Interval(found.value, found.value - found.half, found.value + found.half), LOOKS, len(more))


def play_on(
    play: Callable[[str, Sequence[Any]], list[Episode]], players: Sequence[str], rows: Sequence[Any], first: int
) -> dict[str, list[Episode]]:
    """Lets the players play ``first`` rows, then doubles the rows until the difference is known or time is up. ``play``
    plays rows as one of the ``players``."""
    played: dict[str, list[Episode]] = {who: [] for who in players}
    begun, count = time.monotonic(), min(first, len(rows))
    while True:
        for who, episodes in played.items():
            episodes += play(who, rows[len(episodes) : count])
        taken = time.monotonic() - begun
        if _settled(played) or count == len(rows) or 2 * taken > SECONDS:
            return played
        count = min(2 * count, len(rows))


def _settled(played: Played) -> bool:
    """Returns whether more episodes are of no use."""
    found = difference(played)
    failed = any(one.trajectory.failed for part in played.values() for one in part)
    return found is None or failed or found.low > 0 or found.high < 0


def findings(played: Played) -> Iterator[Finding]:
    """Yields a finding if the player never wins (or, if wins are unknown, never gets a reward above 0), or is not known
    to earn more than random play."""
    scripted = [one.trajectory for one in played.get(PLAYER, ()) if not one.trajectory.failed]
    if scripted and not any(one.won or (one.won is None and one.reward > 0) for one in scripted):
        yield Finding(
            "player",
            f"the scripted player won none of {len(scripted)} episodes: there is nothing to demonstrate, and what good "
            "play earns can't be checked; mend the player, or Step.won if it is never true",
        )
    found = difference(played)
    if found is None or found.low > 0:
        return
    below = "is below" if found.high < 0 else "can't be told from"
    yield look(
        "player",
        f"its reward {below} random play's (difference {found:+.3g} on {len(scripted)} tasks): where good play earns "
        "no more there is nothing to learn; mend the player or reward what it does better, or see more with --episodes "
        f"{4 * len(scripted)}",
    )
