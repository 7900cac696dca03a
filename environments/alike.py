"""Plays one list of actions by siblings side by side and by one alone, and names the cause where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from alignopsd_trl.environments.base import Failure, Opening, Step
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.validation import ValidatedBatch

SIBLINGS = 4  # of each task, played side by side

Task = Mapping[str, Any]
Script = tuple[Task, Sequence[str]]
"""A task with its seeds, and the actions of an episode."""
Trace = list[tuple[Any, ...]]
"""What `reset`, each `step` and `finish` returned."""


class Difference(NamedTuple):
    """A difference between two plays of the same actions.

    Attributes:
        about: ``"replay"`` (two episodes alone differ), ``"reset"`` (an episode leaves something behind) or
            ``"siblings"`` (episodes side by side do).
        text: task, values and remedy.
    """

    about: str
    text: str


def difference(
    factory: Callable[[], Any], scripts: Sequence[Script], time_limit: float, name: Callable[[Task], str]
) -> Difference | None:
    """Plays scripts of several tasks, each by `SIBLINGS` side by side and by one alone. Returns the first difference in
    an observation, reward, end or anything else but ``info``; `None` if there is none.

    Args:
        scripts: one of each task, without ``dynamics_seed`` of their siblings' own.
        name: of a task.
    """

    def played(scripts: Sequence[Script], size: int | None = None, turns: bool = False) -> list[Trace]:
        """Plays scripts side by side, as many at once as the batch has slots."""
        with closing(open_batch(factory, size or len(scripts), time_limit, turns=turns)) as batch:
            parts = range(0, len(scripts), batch.slots)
            return [trace for first in parts for trace in _traces(batch, scripts[first : first + batch.slots])]

    def beside(turns: bool = False) -> list[Trace]:
        return played([*scripts] * SIBLINGS, turns=turns)

    at_once = beside()
    later = played([*scripts, *scripts], size=1)[len(scripts) :]
    for number, script in enumerate(scripts):
        after, siblings = later[number], at_once[number :: len(scripts)]
        if all(_place(trace, after) is None for trace in siblings):
            continue
        task = f"task {name(script[0])!r}"
        fresh, other, third = (played([script])[0] for _ in range(3))
        if chance := next((trace for trace in (other, third) if _place(trace, fresh) is not None), None):
            with closing(open_batch(factory, 1, time_limit)) as batch:
                advice = batch.sibling_advice
            what = f"the same actions came out otherwise {_shown(fresh, chance)}. {advice}"
            return Difference("replay", f"{task}: {what}; if chance on the way is meant, draw it from 'dynamics_seed'")
        if wrong := next((trace for trace in siblings if _place(trace, fresh) is not None), None):
            what = f"side by side with others the same actions came out otherwise {_shown(fresh, wrong)}"
            in_turn = all(_place(trace, fresh) is None for trace in beside(turns=True)[number :: len(scripts)])
            return Difference("siblings", f"{task}: {what}; {_remedy(factory, in_turn)}")
        what = f"after other episodes the same actions came out otherwise {_shown(fresh, after)}"
        return Difference("reset", f"{task}: {what}; let reset() set all state anew, also that of class and module")
    return None


def _remedy(factory: Any, in_turn: bool) -> str:
    """Says what to change where episodes are right alone and wrong side by side."""
    if hasattr(factory, "batch"):
        return "its batch(size, time_limit) mixes episodes; keep the state of each slot apart"
    if in_turn:
        return "its calls can't run at once: leave out concurrent, and environments take turns"
    return (
        "environments share state (class attributes, globals, files): keep it in self; if it is a library's, let "
        "batch(size, time_limit) return ProcessBatch(factory, size, time_limit, workers=size), a process an episode"
    )


def _traces(batch: ValidatedBatch, scripts: Sequence[Script]) -> list[Trace]:
    openings = batch.reset(range(len(scripts)), [task for task, _ in scripts])
    traces: list[Trace] = [[_told(opening)] for opening in openings]
    live = [slot for slot, opening in enumerate(openings) if isinstance(opening, Opening)]
    for turn in range(max(len(actions) for _, actions in scripts)):
        acting = [slot for slot in live if turn < len(scripts[slot][1])]
        steps = batch.step(acting, [scripts[slot][1][turn] for slot in acting]) if acting else []
        for slot, step in zip(acting, steps, strict=True):
            traces[slot].append(_told(step))
            if isinstance(step, Failure):
                live.remove(slot)
    for slot, ending in zip(live, batch.finish(live), strict=True):
        traces[slot].append(_told(ending))
    return traces


def _told(result: Any) -> tuple[Any, ...]:
    """Returns what is compared of a result. A call that took too long differs from nothing."""
    match result:
        case Failure(kind="timeout"):
            return ()
        case Failure(message=message):
            return ("failed", message)
        case Opening():
            return (result.task_text, result.observation, result.admissible, result.category)
        case Step():
            return (result.observation, result.reward, result.done, result.won, result.score, result.admissible)
        case None:
            return ()
    return (result.reward, result.won, result.score)


def _place(first: Trace, second: Trace) -> int | None:
    """Returns the number of the first call in which two plays differ. Failures are equal whatever they say."""
    for number, (left, right) in enumerate(zip(first, second, strict=False)):
        if not left or not right:
            return None
        if left != right and not left[0] == right[0] == "failed":
            return number
    return None


def _shown(first: Trace, second: Trace) -> str:
    place = _place(first, second) or 0
    pairs = [(left, right) for left, right in zip(first[place], second[place], strict=False) if left != right]
    left, right = pairs[0] if pairs else (first[place], second[place])
    return f"at {'reset' if not place else f'turn {place}'}, {left!s:.70} and {right!s:.70}"
