"""Turn credit from the states that the rollouts of a task share: labels of states, and three formulas.

Pure functions; all values float64 ``(M,)`` and without gradient. A state is the observation before a turn. Turns are
never grouped by their number: where the policy decides when to stop, only some rollouts reach a late turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from alignopsd_trl.methods.advantages import RESOLUTION, normalise, segment_sum
from alignopsd_trl.methods.objectives import discounted_returns
from alignopsd_trl.turns import Groups, TurnBatch, number_rows

START = 0

# Rewards and states


def turn_rewards(batch: TurnBatch) -> torch.Tensor:
    """Returns the reward of each turn.

    Raises:
        ValueError: for a batch without them.
    """
    if batch.turn_reward is None:
        raise ValueError("the batch has no turn_reward, the reward of each turn; make it by TurnBatch.of")
    return batch.turn_reward


def state_labels(batch: TurnBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels the observations before and after each turn, ``(M,)`` int64 each.

    Equal texts have equal labels. The label before a first turn is `START`, which no observation has.
    """
    known: dict[str, int] = {}
    after = torch.tensor(
        [known.setdefault(turn.observation, len(known) + 1) for turn in batch.turns],
        dtype=torch.int64,
        device=batch.task.device,
    )
    return labels_before(after, batch.groups, 1, START), after


def labels_before(labels: torch.Tensor, groups: Groups, turns: int, missing: int) -> torch.Tensor:
    """Returns the label that lies ``turns`` earlier in the rollout, ``(M,)``; ``missing`` before its beginning."""
    length = int(groups.position.max()) + 1 if len(labels) else 0
    table = labels.new_full((groups.rollouts, turns + length), missing)
    table[groups.rollout, groups.position + turns] = labels
    return table[groups.rollout, groups.position]


# Hierarchy of groups


def history_groups(groups: Groups, state: torch.Tensor, history: int) -> list[torch.Tensor]:
    """Groups turns with the same state and the same last k states before it, for k = 0 to ``history``.

    Returns:
        ``history + 1`` tensors ``(M,)`` int64; -1 for a turn with fewer than k turns before it.
    """
    levels = [number_rows(groups.task, state)]
    for turns in range(1, history + 1):
        before = labels_before(state, groups, turns, -1)
        levels.append(number_rows(levels[-1], before).masked_fill(before < 0, -1))
    return levels


def hierarchical_advantage(
    returns: torch.Tensor, levels: Sequence[torch.Tensor], exponent: float, scale: bool
) -> torch.Tensor:
    """Returns the sum over k of w_k A_k, A_k the return normalised in its level-k group, w_k ~ (k + 1)^exponent.

    A level without a comparison (no group, a group of one turn, or equal returns) is left out of a turn's sum, and the
    weights of the others add up to 1.
    """
    total, weights = torch.zeros_like(returns), torch.zeros_like(returns)
    for depth, level in enumerate(levels):
        group, count = level + 1, int(level.max()) + 2 if len(level) else 1
        found = normalise(returns, group, count, scale=scale).masked_fill(level < 0, 0.0)
        compared = segment_sum(found.abs(), group, count)[group] > 0
        weight = (depth + 1.0) ** exponent * compared
        total, weights = total + weight * found, weights + weight
    return total / weights.clamp_min(1)


# State graph


def graph_returns(
    reward: torch.Tensor, task: torch.Tensor, before: torch.Tensor, after: torch.Tensor, discount: float
) -> torch.Tensor:
    """Returns R of each turn as an edge of its task's graph: r discount^(d + 1), d its end's distance to the goal.

    A turn with a positive reward ends in the goal: d = 0, and r is that reward. Any other edge gets the largest R over
    the paths from its end to the goal. Without such a path, d is the task's largest distance plus 1 and r its smallest
    positive reward. A task without a positive reward has R = 0.

    Args:
        reward: of the turn alone.
        task: int64 numbers from 0.
        before, after: int64 labels of the turn's states.
    """
    start, end = number_rows(task.repeat(2), torch.cat([before, after])).chunk(2)
    goal, tasks = reward > 0, int(task.max()) + 1 if len(task) else 0
    found, distance = _best_paths(reward, start, end, goal, discount)
    reached = distance.isfinite()
    farthest = distance.new_zeros(tasks).scatter_reduce_(0, task[reached], distance[reached], "amax")[task]
    least = reward.new_zeros(tasks).scatter_reduce_(0, task[goal], reward[goal], "amin", include_self=False)[task]
    return torch.where(reached, found, least * discount ** (farthest + 2))


def _best_paths(
    reward: torch.Tensor, start: torch.Tensor, end: torch.Tensor, goal: torch.Tensor, discount: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest R over the paths from each edge (0: none), and the length of the shortest path."""
    count = int(torch.cat([start, end]).max()) + 1 if len(start) else 0
    found = torch.where(goal, discount * reward, 0.0)
    distance = torch.where(goal, 1.0, torch.inf).to(reward.dtype)
    for _ in range(count):  # a shortest path visits no state twice
        best = reward.new_zeros(count).scatter_reduce_(0, start, found, "amax")
        nearest = reward.new_full((count,), torch.inf).scatter_reduce_(0, start, distance, "amin")
        found = torch.where(goal, found, discount * best[end])
        distance = torch.where(goal, distance, 1 + nearest[end])
    return found, distance


# Grouped values


def grouped_values(returns: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Returns V of each turn's state, ``(M,)``: the mean return over all turns of the task that start in it."""
    count = int(group.max()) + 1 if len(group) else 0
    return (segment_sum(returns, group, count) / torch.bincount(group, minlength=count).clamp_min(1))[group]


def generalised_advantage(
    reward: torch.Tensor, values: torch.Tensor, groups: Groups, gamma: float, decay: float
) -> torch.Tensor:
    """Returns the generalised advantage of each turn k of a rollout, ``(M,)``: the sum over j of
    (gamma decay)^j delta_{k+j} with delta_k = r_k + gamma V_{k+1} - V_k, and V = 0 after the rollout's end."""
    table = values.new_zeros(groups.rollouts, int(groups.position.max()) + 2 if len(values) else 1)
    table[groups.rollout, groups.position] = values
    onward = table[groups.rollout, groups.position + 1]
    delta = reward + gamma * onward - values
    rounding = delta.abs() <= RESOLUTION * (reward.abs() + values.abs())
    return discounted_returns(delta.masked_fill(rounding, 0.0), groups, gamma * decay)
