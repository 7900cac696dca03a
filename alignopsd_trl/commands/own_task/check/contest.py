"""Compares the scripted player with random play on the same tasks, until the difference in reward is known, and with
itself without the text that the teacher reads. What can't be learnt from such play is refused here (`unlearnable`)."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.checks.tasks import Finding, look
from alignopsd_trl.commands.own_task.check import outcomes
from alignopsd_trl.commands.own_task.playing import CUT
from alignopsd_trl.common.progress import quoted
from alignopsd_trl.common.statistics import LEAST_CLUSTERS, Interval, for_several, mean
from alignopsd_trl.rollout.episode import Episode
from alignopsd_trl.turns import StopReason, Trajectory

RANDOM, PLAYER = "random play", "scripted player"
Played = Mapping[str, Sequence[Episode]]

FIRST = 16  # tasks of the first comparison
MOST = 512  # tasks at most, unless the first comparison has more
LOOKS = 6  # comparisons: after `FIRST` tasks, the double, ..., `MOST`; the interval holds for all of them at once
LEAST, ENOUGH = 8, 64
"""Episodes with the text, and as many without it, from which their difference is looked at, and from which one that is
not known ruins a run."""
AT_BEST = 0.9  # share of episodes won without the text from which it can hardly bring more
MOSTLY = 0.5  # share of episodes won up to which the same actions mostly lose


def difference(played: Played) -> Interval | None:
    """Returns the mean of the scripted player's reward minus random play's, paired by task, with its 95 % interval.
    `None` if there is no pair of episodes or all rewards are equal; the ends are NaN with too few pairs."""
    at_random, by_player = ([one.trajectory for one in played.get(who, ())] for who in (RANDOM, PLAYER))
    both = zip(at_random, by_player, strict=False)
    pairs = [(one.reward, scripted.reward) for one, scripted in both if _whole(one) and _whole(scripted)]
    if len({reward for pair in pairs for reward in pair}) < 2:
        return None
    more = [scripted - at_random for at_random, scripted in pairs]
    found = mean(more)
    if len(more) < LEAST_CLUSTERS:
        return Interval(found.value)
    return for_several(Interval(found.value, found.value - found.half, found.value + found.half), LOOKS, len(more))


def play_on(
    play: Callable[[str, Sequence[Any], float], list[Episode]],
    players: Sequence[str],
    rows: Sequence[Any],
    first: int | None,
    seconds: float,
) -> dict[str, list[Episode]]:
    """Lets the players play ``first`` rows, however long that takes, and doubles them until the difference is known or
    ``seconds`` are over. With `None` it begins with two rows, and wants 16 if time allows. The first rows may be
    quicker than others, since they were made before. ``play`` plays rows as one of the ``players``, for so many
    seconds at most."""
    played: dict[str, list[Episode]] = {who: [] for who in players}
    begun, count = time.monotonic(), min(first or 2, len(rows))
    limit, first = math.inf if first else seconds, first or FIRST
    while True:
        for left, (who, episodes) in zip(range(len(played), 0, -1), played.items(), strict=True):
            episodes += play(who, rows[len(episodes) : count], (begun + limit - time.monotonic()) / left)
        limit = seconds
        taken = time.monotonic() - begun
        room = count * seconds / max(taken, 1e-3)  # rows that time allows
        if count >= first and _settled(played) or count == len(rows) or room < 2 * count:
            return played
        count = min(2 * count, len(rows))


def _settled(played: Played) -> bool:
    """Returns whether more episodes are of no use."""
    found = difference(played)
    failed = any(one.trajectory.failed for part in played.values() for one in part)
    by_text = _by_text([one.trajectory for one in played.get(PLAYER, ())])
    if by_text is not None and min(map(len, by_text)) < ENOUGH and not failed:
        return False
    return found is None or failed or found.low > 0 or found.high < 0


def _whole(episode: Trajectory) -> bool:
    return not episode.failed and episode.message != CUT


def unlearnable(episodes: Sequence[Episode]) -> Iterator[Finding]:
    """Yields findings about a player's episodes from which a policy can't learn: its moves are refused throughout, it
    never wins (or, if wins are unknown, always earns the same, and no reward above 0), its prompts hold nothing to
    decide by, or the text that the teacher reads brings it nothing or does not say what it wins by."""
    yield from outcomes.unreadable(episodes)
    whole = [one.trajectory for one in episodes if _whole(one.trajectory)]
    rewards = {one.reward for one in whole}
    barren = any(one.won is not None for one in whole) or len(rewards) == 1 and max(rewards) <= 0
    if outcomes.refused_throughout(episodes):
        turn = next(turn for one in episodes for turn in one.trajectory.turns)
        yield Finding(
            "player",
            f"nearly all moves of the player are refused, such as {quoted(turn.response_text)}, answered "
            f"by {quoted(turn.observation)}: such play shows nothing; let it answer as the prompt asks and "
            "move by the world's rules",
        )
    elif len(whole) >= LEAST and not any(one.won for one in whole) and barren:
        yield Finding(
            "player",
            f"the scripted player won none of {len(whole)} episodes: there is nothing to demonstrate, and what good "
            "play earns can't be checked; mend the player, or Step.won if it is never true",
        )
    else:
        yield from _text_brings_nothing(whole)
        yield from _unexplained(whole)


def _won(episode: Trajectory) -> bool:
    return bool(episode.won or (episode.won is None and episode.reward > 0))


def _by_text(episodes: Sequence[Trajectory]) -> tuple[list[float], list[float]] | None:
    """Returns the player's rewards with and without the text that the teacher reads; `None` where they are few, or the
    first are surely higher, or can hardly be."""
    read, bare = ([one for one in episodes if one.skill_text and one.privileged is kind] for kind in (True, False))
    if min(len(read), len(bare)) < LEAST or sum(map(_won, bare)) >= AT_BEST * len(bare):
        return None
    rewards = [one.reward for one in read], [one.reward for one in bare]
    with_it, without = map(mean, rewards)
    return None if with_it.value - without.value > math.hypot(with_it.half, without.half) else rewards


def _text_brings_nothing(episodes: Sequence[Trajectory]) -> Iterator[Finding]:
    """Yields a finding if the player is not known to earn more with the text that the teacher reads than without it."""
    if (found := _by_text(episodes)) is None:
        return
    (with_it, without), enough = map(statistics.mean, found), min(map(len, found)) >= ENOUGH
    if enough or with_it <= without:
        yield Finding(
            "skill",
            f"the player earns {with_it:.3g} with the text that the teacher reads and {without:.3g} without it "
            f"({len(found[0])} and {len(found[1])} episodes): a text that brings nothing teaches nothing; write what "
            "is true of the row and helps, let the player use it, or demonstrate with --skilled_share 0 and train with "
            "--method grpo",
            ruins=enough,
        )


def _unexplained(episodes: Sequence[Trajectory]) -> Iterator[Finding]:
    """Yields a finding if the player wins under a text by what neither text nor prompts say: in tasks with that text,
    its actions after the same prompts mostly lose where it does not read it."""
    alike = defaultdict[Any, dict[bool, list[bool]]](lambda: {True: [], False: []})
    for one in episodes:
        if one.skill_text and one.stop is StopReason.DONE:
            views = [(turn.shown.view, turn.action) for turn in one.turns]
            seen = tuple((view.task_text, view.observation, view.admissible, action) for view, action in views)
            alike[one.skill_text, seen][one.privileged].append(_won(one))
    both = [one for one in alike.values() if one[True] and one[False]]
    read, bare = ([won for one in both for won in one[kind]] for kind in (True, False))
    if min(len(read), len(bare)) >= LEAST and sum(read) >= AT_BEST * len(read) and sum(bare) <= MOSTLY * len(bare):
        yield Finding(
            "skill",
            f"the same actions after the same prompts win {sum(read)} of {len(read)} episodes where the player reads "
            f"the teacher's text and {sum(bare)} of {len(bare)} where it does not: it knows what neither says, and no "
            "teacher can; write into the text what is true of the row",
        )


def findings(played: Played) -> Iterator[Finding]:
    """Yields findings about what can't be learnt from the player, and one if it is not known to earn more than random
    play."""
    by_player = played.get(PLAYER, ())
    yield from unlearnable(by_player)
    found = difference(played)
    if found is None or found.low > 0:
        return
    more = f"see more with --episodes {4 * len(by_player)}"
    if math.isnan(found.low):
        yield look("player", f"its reward can't be told from random play's: too few episodes ended; {more}")
        return
    below = "is below" if found.high < 0 else "can't be told from"
    yield look(
        "player",
        f"its reward {below} random play's (difference {found:+.3g} on {len(by_player)} tasks): where good play earns "
        f"no more there is nothing to learn; mend the player or reward what it does better, or {more}",
    )
