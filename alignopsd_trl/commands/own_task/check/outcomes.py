"""Finds a task's problems in played episodes: rewards, ends, time, actions, prompts, skills."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.checks.tasks import Finding, look
from alignopsd_trl.commands.own_task.playing import CUT
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.common.progress import quoted
from alignopsd_trl.environments.base import Opening
from alignopsd_trl.rollout.episode import Episode
from alignopsd_trl.rollout.renderer import Renderer, text_of
from alignopsd_trl.turns import StopReason, Trajectory, Turn

OVERDUE = "no answer within"  # start of the message of a call that exceeds the time limit
SLOW = 1.0  # mean seconds of a turn's steps above which they are slow
LARGE = 100.0
"""A reward above this, or above this many times the median reward, is too large."""
_NUMBERS = re.compile(r"[\s\d.,;:eE+()\[\]-]*\d[\s\d.,;:eE+()\[\]-]*")
_TOLD = re.compile(
    r"number|digit|value|sum|add|plus|minus|count|total|place|state|position|code|score|card", re.IGNORECASE
)
"""Words of a task's text that say what a bare number is."""
SHOWN = 8  # rewards of an episode that are printed
FEWEST, NEARLY_ALL = 4, 0.9
"""Episodes, and their share, needed to tell a rule of rewards from chance."""


def failures(episodes: Sequence[Episode]) -> Iterator[Finding]:
    """Yields findings about errors, calls that hang and wrong types."""
    tasks: dict[str, list[str]] = {}
    for one in episodes:
        if one.failure is not None:
            tasks.setdefault(one.failure.message, []).append(one.trajectory.row["task_id"])
    for message, failed in list(tasks.items())[:3]:
        told = f"{len(failed)} of {len(episodes)} episodes failed, task {failed[0]!r} with: {message}"
        slower = "; end the call, or allow more with --time_limit" if message.startswith(OVERDUE) else ""
        yield Finding("failure", told + slower)


def rewards(episodes: Sequence[Episode]) -> Iterator[Finding]:
    """Yields findings about rewards that teach nothing, or the wrong thing."""
    whole = _whole(episodes)
    totals = [one.reward for one in whole]
    same = len(whole) >= FEWEST and len({round(one, 9) for one in totals}) == 1
    if same:
        yield Finding(
            "reward",
            f"all {len(whole)} episodes got {totals[0]:g}: no group differs and nothing is learnt; give a reward that "
            "good play changes, or tasks that are sometimes solved",
        )
    yield from _proportion(episodes)
    if late := sum(one.trajectory.message == CUT for one in episodes):
        yield look(
            "time",
            f"{late} of {len(episodes)} episodes were still played when the time of the check was over; --episodes 4 "
            "plays the first 4 of each player to their end",
        )
    won, lost = ([one.reward for one in whole if one.won is kind] for kind in (True, False))
    if won and lost and not same and statistics.mean(won) <= statistics.mean(lost):
        yield Finding(
            "reward",
            f"won episodes got {statistics.mean(won):g} and lost ones {statistics.mean(lost):g} on average: training "
            "would teach to lose; mend reward or won",
        )
    if odd := [one.score for one in whole if not 0 <= one.score <= 1]:
        yield look(
            "score", f"{len(odd)} episodes have a score such as {odd[0]:g}: tables print it in percent; give a share"
        )
    if whole and all(one.won is None for one in whole):
        yield look("won", "no episode says whether it was won; results report the score alone")


def _whole(episodes: Sequence[Episode]) -> list[Trajectory]:
    """Returns the trajectories that ended by themselves or by the turn limit."""
    return [one.trajectory for one in episodes if not one.trajectory.failed and one.trajectory.message != CUT]


def victories(at_random: Sequence[Episode]) -> Iterator[Finding]:
    """Yields a finding if random play always wins."""
    whole = _whole(at_random)
    if len(whole) > 1 and all(one.won for one in whole):
        yield Finding("won", f"random play won all {len(whole)} episodes; mend Step.won, or give harder tasks")


def told(episodes: Sequence[Episode]) -> str:
    """Returns the nonzero rewards of the episode with the most rewarded turns as text, each with its turn; an empty
    text if all episodes failed."""
    whole = [one for one in episodes if one.failure is None]
    if not whole:
        return ""
    most = max(whole, key=lambda one: (sum(map(bool, _earned(one))), len(one.trajectory.turns)))
    episode = most.trajectory
    names = [*(f"turn {number}" for number in range(1, len(episode.turns) + 1)), "finish"]
    parts = [f"{name}: {reward:g}" for name, reward in zip(names, _earned(most), strict=True) if reward]
    if len(parts) > SHOWN:
        parts = [*parts[: SHOWN // 2], "...", *parts[-SHOWN // 2 :]]
    ending = f"turns: {len(episode.turns)}; in all {episode.reward:g}"
    return f"{', '.join(parts) or 'none'} ({ending}), task {episode.row['task_id']!r}"


def _earned(episode: Episode) -> list[float]:
    """Returns the rewards of the turns' own, and that of `finish`."""
    rewards = [turn.reward for turn in episode.trajectory.turns]
    if rewards:
        rewards[-1] = round(rewards[-1] - episode.finish_reward, 6)
    return [*rewards, episode.finish_reward]


def paid_twice(episodes: Sequence[Episode]) -> Iterator[Finding]:
    """Yields a finding if the last reward of nearly all episodes with several earlier ones holds their sum, and both
    differ."""
    ended = [one for one in episodes if one.trajectory.stop is StopReason.DONE]
    parts = [[reward for reward in _earned(one) if reward] for one in ended]
    several = [(before, last) for *before, last in filter(None, parts) if len(before) > 1]
    again = [(round(sum(before), 6), round(last, 6)) for before, last in several if _holds_sum(before, last)]
    enough = len(again) >= max(FEWEST, NEARLY_ALL * len(several))
    if enough and all(len(set(values)) > 1 for values in zip(*again, strict=True)):
        yield look(
            "reward",
            f"in {len(again)} of {len(several)} episodes with several rewards the last one holds the sum of those "
            "before it: all is paid twice; give each turn what it earned alone",
        )


def _holds_sum(before: Sequence[float], last: float) -> bool:
    """Returns whether the last reward is the sum of those before it, and up to twice what one of them paid: the last
    turn's own, which is paid beside a total that may count it too."""
    own = last - sum(before)
    return any(abs(own - times * one) < 1e-6 for one in before for times in (0, 1, 2))


def _proportion(episodes: Sequence[Episode]) -> Iterator[Finding]:
    paid = [reward for one in episodes if one.failure is None for reward in _earned(one)[:-1]]
    sizes = sorted(abs(reward) for reward in paid if reward)
    if not sizes:
        return
    if sizes[-1] > LARGE:
        yield Finding("reward", f"a step's reward is {sizes[-1]:g}; divide rewards so that an episode's is near 1")
    elif sizes[-1] > LARGE * statistics.median(sizes):
        yield Finding(
            "reward",
            f"one step's reward is {sizes[-1]:g} where the usual one is {statistics.median(sizes):g}; the usual ones "
            "will not be heard",
        )


def ends(episodes: Sequence[Episode], max_turns: int) -> Iterator[Finding]:
    """Yields findings about episodes that end too late or too early."""
    whole = _whole(episodes)
    enough = len(whole) >= FEWEST
    if enough and all(one.stop is StopReason.TURN_LIMIT for one in whole):
        yield Finding(
            "end", f"no episode ended within max_turns={max_turns}; set Step.done where it is over, or raise max_turns"
        )
    if enough and max_turns > 1 and all(one.stop is StopReason.DONE and len(one.turns) == 1 for one in whole):
        yield Finding("end", "every episode ended with its first turn; Step.done must wait until the task is over")
    if late := sum(one.won is True and one.stop is StopReason.TURN_LIMIT for one in whole):
        yield look("end", f"{late} episodes were won and went on; set Step.done with Step.won")


def seconds(episodes: Sequence[Episode], time_limit: float, concurrent: Any = False) -> Iterator[Finding]:
    """Yields a finding if steps are slow. Calls beyond the time limit don't count here; `failures` reports them.
    ``concurrent`` is what the class says already."""
    taken = [seconds for one in episodes for seconds in one.waited if seconds < time_limit]
    if taken and statistics.mean(taken) > SLOW:
        told = f"a turn waits {statistics.mean(taken):.1f} s for the steps of the episodes side by side: make steps "
        says = ", or let the class say concurrent = True (steps that wait) or 'processes' (steps that compute)"
        yield look("time", f"{told}cheaper{'' if concurrent else says}")


def actions(played: Mapping[str, Sequence[Episode]]) -> Iterator[Finding]:
    """Yields findings about refused offers, invalid responses of the scripted player and turns without actions."""
    for who, episodes in played.items():
        turns = [turn for one in episodes for turn in one.trajectory.turns]
        invalid = [turn for turn in turns if not turn.action_valid]
        refused = [turn for turn in invalid if turn.action in turn.shown.view.admissible]
        other = [turn for turn in invalid if turn.action not in turn.shown.view.admissible]
        if refused:
            yield Finding(
                "action", f"{refused[0].action!r} was offered and refused {len(refused)} times; offer what step() takes"
            )
        if who == "scripted player" and other and not refused_throughout(episodes):  # which is said elsewhere
            yield Finding(
                "player",
                f"{len(other)} of {len(turns)} of the scripted player's responses are invalid actions, such as "
                f"{quoted(other[0].response_text)}, answered by {quoted(other[0].observation)}; answer as the "
                "prompt asks, by the world's rules, or mend what raised that",
                any(not turn.action for turn in other),
            )
        stuck = [turn for one in episodes for turn in _stuck(one)]
        if stuck:
            text = f"after {stuck[0].action!r} nothing is offered and the episode goes on; set Step.done"
            yield Finding("action", text)


def unreadable(episodes: Sequence[Episode]) -> Iterator[Finding]:
    """Yields a finding if prompts show bare numbers and no word that says what they are."""
    firsts = [turn for one in episodes for turn in one.trajectory.turns[:1]]
    views = [turn.shown.view for turn in firsts if turn.shown is not None]
    bare = [one for one in views if _NUMBERS.fullmatch(one.observation) and not _TOLD.search(one.task_text)]
    if bare and len(bare) == len(views):
        yield Finding(
            "prompt",
            f"a prompt shows {bare[0].observation!r:.60} and {bare[0].task_text!r:.60}, which hold nothing to decide "
            "by; say in the observation what the numbers are (of Gymnasium: seen, or --seen of alignopsd new)",
        )


def refused_throughout(episodes: Sequence[Episode]) -> bool:
    """Returns whether nearly all actions of a player are invalid, so that its play shows nothing."""
    valid = [turn.action_valid for one in episodes for turn in one.trajectory.turns]
    return bool(valid) and valid.count(False) >= NEARLY_ALL * len(valid)


def _stuck(episode: Episode) -> list[Turn]:
    """Returns the turns that had actions on offer and after which the episode went on with none."""
    turns, limited = episode.trajectory.turns, episode.trajectory.stop is StopReason.TURN_LIMIT
    offers = [turn.shown.view.admissible for turn in turns] + [episode.admissible] * limited
    return [turn for turn, some, later in zip(turns, offers, offers[1:], strict=False) if some and not later]


def prompts(renderer: Renderer, episodes: Sequence[Trajectory], longest_answer: int) -> Iterator[Finding]:
    """Yields findings about prompts and responses beyond the policy's limits, and about skills in prompts."""
    turns = [(one, turn) for one in episodes for turn in one.turns]
    fitted = renderer.fit([turn.shown.view for _, turn in turns], [one.skill_text for one, _ in turns])
    lost = sum(one is None for one in fitted)
    pairs = zip(fitted, turns, strict=True)
    cut = sum(one is not None and len(one.view.history) < len(turn.shown.view.history) for one, (_, turn) in pairs)
    count, bound = len(turns), f"max_prompt_length={renderer.max_length}"
    if lost:
        yield Finding("prompt", f"{lost} of {count} prompts are longer than {bound} without any history; raise it")
    if cut:
        yield look("prompt", f"{cut} of {count} prompts lose history to {bound}; raise it")
    longest = max((len(renderer.tokens(turn.response_text)) + 1 for _, turn in turns), default=0)
    if longest > longest_answer:
        yield Finding(
            "response", f"the longest response has {longest} tokens; raise max_completion_length={longest_answer}"
        )
    yield from _skill_slot(renderer, turns)


def _skill_slot(renderer: Renderer, turns: Sequence[tuple[Trajectory, Turn]]) -> Iterator[Finding]:
    """Yields a finding if the teacher's prompt lacks the skill, or if the policy's prompt shows it."""
    shown = next(((one.skill_text, turn.shown.view) for one, turn in turns if one.skill_text), None)
    if shown is None:
        return
    skill, view = shown
    plain, skilled = (text_of(renderer.show(view, text)) for text in ("", skill))
    if plain == skilled:
        yield Finding("skill", "prompt.render(view, skill) does not show the skill; the teacher would read nothing")
    elif skill.strip() in plain:
        yield Finding("skill", "the prompt without a skill shows it all the same; the policy must not read it")


def retrieval(task: Task, bank: Any, episodes: Sequence[Episode], openings: Sequence[Opening]) -> Iterator[Finding]:
    """Yields findings about played tasks without a skill, and skills that no opening retrieves."""
    opened = [one.trajectory for one in episodes if one.trajectory.turns or one.failure is None]
    bare = [one for one in opened if not one.skill_text]
    if opened and len(bare) == len(opened):
        yield Finding(
            "skill", "no task retrieves a skill; methods with a teacher need one: fill the bank or the column"
        )
    elif bare:
        yield look("skill", f"{len(bare)} of {len(opened)} tasks have no skill, such as {bare[0].row['task_id']!r}")
    types = getattr(bank, "task_types", ())
    if types and openings:
        name = task.suite.name
        if bank.environment not in (name, name.partition("_")[0]):
            yield Finding(
                "skill", f"the bank is for environment {bank.environment!r}, not {name!r}; name the right one"
            )
        asked = {(one.task_text, one.task_key, one.data_source) for one in openings}
        used = {key for one in asked for key in bank.retrieve(*one).type_keys}
        if unused := [kind.key for kind in types if kind.key not in used]:
            yield Finding(
                "skill",
                f"none of {len(openings)} tasks retrieves the skills of {', '.join(unused)}; correct their "
                "keywords, or Opening.task_text and Opening.task_key",
            )
