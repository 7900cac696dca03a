"""Searches for the shortest way to win an episode, by copies of its environment."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Sequence

from alignopsd_trl.environments.base import TextEnvironment


def shortest_way(
    start: TextEnvironment,
    actions: Sequence[str],
    situation: Callable[[TextEnvironment], Hashable],
    *,
    most: int = 3000,
    seconds: float = 20.0,
) -> tuple[str, ...] | None:
    """Returns the fewest actions that win an episode, or `None` if none are found. The search goes breadth-first.

    Args:
        start: an environment after its reset, which `copy.deepcopy` copies with its chance; it stays as it is.
        actions: all that may be tried; an invalid one is no move.
        situation: of an environment all that decides how its episode goes on; equal ones are looked at once.
        most: situations that are looked at.
        seconds: after which the search gives up.
    """
    known, end = {situation(start)}, time.monotonic() + seconds
    ways: list[tuple[TextEnvironment, tuple[str, ...]]] = [(start, ())]
    for environment, way in ways:  # which grows
        for action in actions:
            one = copy.deepcopy(environment)
            step = one.step(action)
            if step.won:
                return (*way, action)
            if step.valid and not step.done and (here := situation(one)) not in known:
                known.add(here)
                ways.append((one, (*way, action)))
        if len(known) > most or time.monotonic() > end:
            return None
    return None
