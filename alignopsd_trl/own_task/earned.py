"""Shows the rewards of played episodes turn by turn, and finds rewards that are paid again at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from alignopsd_trl.checks.findings import Finding
from alignopsd_trl.own_task.playing import ENDED, FAILED, PlayedEpisode

SHOWN = 8  # rewards of an episode that are printed
FEWEST = 4  # episodes needed to tell a rule from chance
NEARLY_ALL = 0.9


def _turns(episode: PlayedEpisode) -> list[float]:
    return [turn.step.reward for turn in episode.turns]


def _finish(episode: PlayedEpisode) -> float:
    return round(episode.reward - sum(_turns(episode)), 6)


def told(episode: PlayedEpisode) -> str:
    """Returns the nonzero rewards of an episode as text, each with its turn."""
    parts = [f"turn {number}: {reward:g}" for number, reward in enumerate(_turns(episode), start=1) if reward]
    parts += [f"finish: {_finish(episode):g}"] if _finish(episode) else []
    if len(parts) > SHOWN:
        parts = [*parts[: SHOWN // 2], "...", *parts[-SHOWN // 2 :]]
    return f"{', '.join(parts) or 'none'} (turns: {len(episode.turns)}; in all {episode.reward:g})"


def most_told(episodes: Sequence[PlayedEpisode]) -> PlayedEpisode | None:
    """Returns the episode with the most rewarded turns, among equals the longest; `None` if all episodes failed."""
    whole = [one for one in episodes if one.stop != FAILED]
    return max(whole, key=lambda one: (sum(map(bool, [*_turns(one), _finish(one)])), len(one.turns)), default=None)


def paid_twice(episodes: Sequence[PlayedEpisode]) -> Iterator[Finding]:
    """Yields a finding if the last reward of an episode pays the earlier ones again.

    Only ended episodes with at least two rewarded turns before the last reward count. In nearly all of them the last
    reward must equal the earlier sum, alone or plus an extra: one turn's reward. The sums must vary more than extras.
    """
    ended = [one for one in episodes if one.turns and (one.stop == ENDED or (one.stop != FAILED and _finish(one)))]
    parted = [(one, *_before_and_last(one)) for one in ended]
    single = {0.0, *(round(reward, 6) for _, before, _ in parted for reward in before)}
    several = [(one, round(sum(before), 6), last) for one, before, last in parted if sum(map(bool, before)) > 1]
    again = [(one, total, round(last - total, 6)) for one, total, last in several if round(last - total, 6) in single]
    sums, left = {total for _, total, _ in again}, {rest for _, _, rest in again}
    if len(again) < max(FEWEST, NEARLY_ALL * len(several)) or len(left) >= len(sums):
        return
    yield Finding(
        "reward",
        f"in {len(again)} of {len(several)} episodes with several rewarded turns the last reward is the sum of those "
        f"before it{'' if left == {0.0} else ' and its own'}, such as {told(again[0][0])}: all is paid twice; give "
        "each turn what it earned alone",
        ruins=False,
    )


def _before_and_last(episode: PlayedEpisode) -> tuple[list[float], float]:
    """Returns the earlier rewards, and the last one: that of `finish` if it is not 0, else the last turn's."""
    rewards, end = _turns(episode), _finish(episode)
    return (rewards, end) if end else (rewards[:-1], rewards[-1])
