"""Metrics of a round of episodes for the log."""

from __future__ import annotations

import math
from collections.abc import Sequence

from alignopsd_trl.turns import StopReason, Trajectory, continued

SQUARES = "tasks/squared_success"
"""The mean over tasks of the squared success rate. With ``episodes/success`` it tells how much tasks differ."""


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns the metrics of a round: outcome, length, validity, repetition, why episodes ended (one-hot shares), and
    the environment's `metrics` of last steps."""
    found = means([rollout_sums(trajectories)])
    return found | ({SQUARES: _squares(trajectories)} if "episodes/success" in found else {})


def means(parts: Sequence[dict[str, tuple[float, int]]]) -> dict[str, float]:
    """Returns the means over the `rollout_sums` of all parts; one that is not known for all of its terms is absent."""
    found = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        total, count = map(sum, zip(*(part[name] for part in parts if name in part), strict=True))
        found |= {} if math.isnan(total) else {name: total / max(count, 1)}
    return found


def rollout_sums(trajectories: Sequence[Trajectory]) -> dict[str, tuple[float, int]]:
    """Returns the sums behind `rollout_metrics` and the numbers of their terms, without the squares over whole tasks; a
    success that is not known for all episodes is NaN."""
    count = len(trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    counted = len(turns)
    # a turn repeats an action of its episode if the same observation follows
    different = sum(len({(turn.action, turn.observation) for turn in one.turns}) for one in trajectories)
    known = all(trajectory.won is not None for trajectory in trajectories)
    sums = {
        "episodes/score": (math.fsum(t.score for t in trajectories), count),
        "episodes/turns": (counted, count),
        "turns/response_tokens": (sum(len(turn.response_ids) for turn in turns), counted),
        "turns/prompt_tokens": (sum(len(turn.prompt_ids) for turn in turns), counted),
        "turns/truncated": (sum(turn.truncated for turn in turns), counted),
        "turns/invalid_actions": (sum(not turn.action_valid for turn in turns), counted),
        "turns/repeated": (counted - different, counted),
        "turns/shortened_history": (sum(turn.history_shortened for turn in turns), counted),
        "episodes/success": (sum(bool(t.won) for t in trajectories) if known else math.nan, count),
    }
    if any(trajectory.skill_text for trajectory in trajectories):
        sums["episodes/skill_items"] = sum(len(t.skill_ids) for t in trajectories), count
    for reason in StopReason:
        sums[f"stop/{reason.value.replace(' ', '_')}"] = sum(t.stop is reason for t in trajectories), count
    return sums | _last_numbers(trajectories)


def _squares(trajectories: Sequence[Trajectory]) -> float:
    won: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        won.setdefault(str(trajectory.row.get("task_id")), []).append(bool(trajectory.won))
    return sum((sum(one) / len(one)) ** 2 for one in won.values()) / max(len(won), 1)


def privileged_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns score and success of the episodes that the teacher played; empty without any."""
    found = means([rollout_sums(trajectories)]) if trajectories else {}
    names = {"episodes/score": "privileged/score", "episodes/success": "privileged/success"}
    return {own: found[name] for name, own in names.items() if name in found}


def conversation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns two counts per episode. ``broken_prefixes`` are turns whose prompt does not begin with the previous
    turn's prompt and response, because the template changed them or history was dropped; ``runs`` are maximal runs of
    turns without such a break."""
    played = [trajectory.turns for trajectory in trajectories if trajectory.turns]
    pairs = [pair for turns in played for pair in continued(turns)]
    broken = sum(not two.extends(one) for one, two in pairs)
    runs = sum(map(len, played)) - len(pairs) + broken
    count = max(len(trajectories), 1)
    return {"conversation/broken_prefixes": broken / count, "conversation/runs": runs / count}


def _last_numbers(trajectories: Sequence[Trajectory]) -> dict[str, tuple[float, int]]:
    """Returns the sum of each number in `Turn.metrics` over the last turns that have it."""
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.turns[-1].metrics.items() if trajectory.turns else ():
            found.setdefault(name, []).append(float(value))
    return {f"last_step/{name}": (sum(values), len(values)) for name, values in sorted(found.items())}
