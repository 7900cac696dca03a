"""Turn credit without a teacher: four methods from the states that the rollouts of a task share, and Monte Carlo's.

The four use no skill and no further forward pass, and are beyond the paper's table. All values are float64 ``(M,)``
and without gradient. A state is the observation before a turn. Turns are never grouped by their number: where the
policy decides when to stop, only some rollouts reach a late turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from alignopsd_trl.common.options import Count, PositiveCount, Share, Size, option
from alignopsd_trl.methods.base import Credit, Teacher, register
from alignopsd_trl.methods.baseline import Baseline, credit_of
from alignopsd_trl.methods.grpo import (
    EPSILON,
    RESOLUTION,
    OutcomeAdvantage,
    deviation,
    imitated,
    normalise,
    outcome,
    segment_sum,
)
from alignopsd_trl.methods.objectives import discounted_returns, turn_table
from alignopsd_trl.turns import Groups, TurnBatch, number_rows

START = 0

# Rewards and states


def turn_rewards(batch: TurnBatch) -> torch.Tensor:
    """Returns the reward of each turn."""
    assert batch.turn_reward is not None, "`TurnBatch.of` knows it"
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
    return turn_table(labels, groups, turns, missing)[groups.rollout, groups.position]


# Hierarchy of groups


def history_groups(groups: Groups, state: torch.Tensor, history: int) -> list[torch.Tensor]:
    """Groups turns with the same state and the same last k states before it, for k = 0 to ``history``: tensors
    ``(M,)`` int64, -1 for a turn with fewer than k turns before it."""
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
    count = int(torch.cat([start, end]).max()) + 1 if len(start) else 0
    found = torch.where(goal, discount * reward, 0.0)  # the largest R over the paths from each edge
    distance = torch.where(goal, 1.0, torch.inf).to(reward.dtype)
    for _ in range(count):  # a shortest path visits no state twice
        best = reward.new_zeros(count).scatter_reduce_(0, start, found, "amax")
        nearest = reward.new_full((count,), torch.inf).scatter_reduce_(0, start, distance, "amin")
        found = torch.where(goal, found, discount * best[end])
        distance = torch.where(goal, distance, 1 + nearest[end])
    reached = distance.isfinite()
    farthest = distance.new_zeros(tasks).scatter_reduce_(0, task[reached], distance[reached], "amax")[task]
    least = reward.new_zeros(tasks).scatter_reduce_(0, task[goal], reward[goal], "amin", include_self=False)[task]
    return torch.where(reached, found, least * discount ** (farthest + 2))


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
    onward = turn_table(values, groups)[groups.rollout, groups.position + 1]
    delta = reward + gamma * onward - values
    rounding = delta.abs() <= RESOLUTION * (reward.abs() + values.abs())
    return discounted_returns(delta.masked_fill(rounding, 0.0), groups, gamma * decay)


# Methods


def _credit(
    batch: TurnBatch,
    found: OutcomeAdvantage,
    shaped: torch.Tensor,
    steps: torch.Tensor,
    state: torch.Tensor,
    trace: dict[str, torch.Tensor] | None = None,
) -> Credit:
    """Makes the credit of the methods below. Advantages become 0 in a task with a single rollout.
    ``credit/shared_state_share`` is the share of turns whose state another turn has too.

    Args:
        shaped: ``(M,)`` the method's advantage of each turn.
        steps: ``(M,)`` the part of it that comes from the comparison, for the records.
        state: ``(M,)`` int64; turns of equal numbers start in the same state.
    """
    shaped = imitated(batch, shaped.masked_fill(batch.groups.siblings < 2, 0.0))
    shared = torch.bincount(state)[state] > 1
    metrics = {"credit/shared_state_share": float(shared.double().mean())} if len(batch) else {}
    return credit_of(batch, found, shaped, metrics, {"step_advantage": steps, "state_group": state} | (trace or {}))


@dataclass(frozen=True)
class GiGPOOptions:
    gamma: Size = option(0.95, "Discount of returns.")
    step_weight: Size = option(1.0, "omega: weight of the step advantage.")
    scale_steps: bool = option(False, "Divide step advantages by their group's deviation (off by default there).")


@register
class GiGPO(Baseline):
    """A + omega A^S: discounted returns compared among the turns that start from the same observation.

    G_k = sum of gamma^(j - k) r_j over the turns j >= k of the rollout (Eq. 5), r_j the reward of turn j
    (`TurnBatch.turn_reward`); A^S is G less the mean over its state group (same task, equal observation before the
    turn), 0 for a state met once. The first turns of a task form one group.

    Source: GiGPO (arXiv 2505.10978) and its published code, exact state matching. Its statistics of A are over turn
    rows and its default does not divide by the deviation: set ``group_statistics="turn"``, ``scale_rewards="none"`` for
    that. Confidence: high.
    """

    name = "gigpo"
    Options = GiGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found = self.options, outcome(batch, self.config)
        returns = discounted_returns(turn_rewards(batch), batch.groups, options.gamma)
        state = number_rows(batch.groups.task, state_labels(batch)[0])
        steps = normalise(returns, state, len(torch.bincount(state)), scale=options.scale_steps)
        return _credit(batch, found, found.advantage + options.step_weight * steps, steps, state)


@dataclass(frozen=True)
class HGPOOptions:
    gamma: Size = option(0.95, "Discount of returns.")
    history: Count = option(2, "K: states before the current one that a group may share.")
    depth_exponent: Size = option(
        1.0, "alpha: level k weighs (k + 1)^alpha, so that longer shared history counts more."
    )


@register
class HGPO(Baseline):
    """A^H = sum over k of w_k A_k: discounted returns compared at K + 1 depths of shared history.

    The group of depth k holds the task's turns with the same state and the same k states before it; A_k is the return
    less the group's mean, over its deviation (``scale_rewards="none"``, the published default: not divided).
    w_k = (k + 1)^alpha over their sum. A^H replaces the outcome advantage.

    Source: HGPO (arXiv 2602.22817, Eq. 3 to 7) and its published code. A group whose returns are all equal is left out
    and the other weights add up to 1, as in both; so is a depth for which a turn has not enough history, as in the
    code. Departure: the code leaves out single turns whose A_k is 0, we leave out whole groups. Confidence: high.
    """

    name = "hgpo"
    Options = HGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, scale = self.options, self.config.scale_rewards == "group"
        returns = discounted_returns(turn_rewards(batch), batch.groups, options.gamma)
        levels = history_groups(batch.groups, state_labels(batch)[0], options.history)
        steps = hierarchical_advantage(returns, levels, options.depth_exponent, scale)
        return _credit(batch, outcome(batch, self.config), steps, steps, levels[0])


@dataclass(frozen=True)
class GraphGPOOptions:
    distance_discount: Share = option(0.1, "omega: R of an edge shrinks by it with each step to the goal.")
    graph_weight: Size = option(1.0, "beta_G: weight of the graph advantage.")
    episode_weight: Size = option(1.0, "beta_E: weight of the outcome advantage.")


@register
class GraphGPO(Baseline):
    """beta_E A + beta_G A^G: turns that leave the same state are compared by how near to the goal they lead.

    The observations of all rollouts of a task are the nodes of a graph, and turns are its edges, of length 1. A turn
    has R = r omega^(d + 1), with d the shortest distance from its end to the goal over the turns of all rollouts. A^G
    is R minus its mean over the turns that leave the same state, divided by their deviation (``scale_rewards="none"``:
    not divided). So a turn that brings the goal nearer is credited in a failed rollout too.

    Source: GraphGPO (arXiv 2605.26684, Eq. 4 and its group statistics); omega as in a public reproduction of the
    authors' recipe. Departure: every turn with a positive reward enters the goal, with that reward as r; with one
    terminal reward that is the paper's formula. Confidence: high for the formula, medium for omega.
    """

    name = "graphgpo"
    Options = GraphGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found, task = self.options, outcome(batch, self.config), batch.groups.task
        before, after = state_labels(batch)
        returns = graph_returns(turn_rewards(batch), task, before, after, options.distance_discount)
        state = number_rows(task, before)
        scale = self.config.scale_rewards == "group"
        steps = normalise(returns, state, len(torch.bincount(state)), scale=scale)
        shaped = options.episode_weight * found.advantage + options.graph_weight * steps
        return _credit(batch, found, shaped, steps, state)


@dataclass(frozen=True)
class GAGPOOptions:
    gamma: Share = option(0.95, "Discount of returns.")
    gae_lambda: Share = option(0.8, "lambda: 0 takes one step, 1 all that follow.")


@register
class GAGPO(Baseline):
    """GAE of turns over V(s), the mean discounted return of the task's turns that start in s; then normalised.

    delta_k = r_k + gamma V(s_{k+1}) - V(s_k), with V = 0 after the end and r_k the turn's reward; A_k = sum of
    (gamma lambda)^j delta_{k+j}. Mean and deviation are those of all turns of the task (``scale_rewards="none"``: not
    divided). The deltas of a task add up to 0, so that centring changes a turn little. A_k replaces the outcome
    advantage.

    The paper's importance ratio of an action, the geometric mean over its tokens, is ``importance_sampling_level=
    "sequence"`` of the run, where a row is a turn.

    Source: public summaries of GAGPO (arXiv 2605.13217); its equations were not seen. The population of mean and
    deviation (the turns of a task) and the default of lambda are our choice. Confidence: medium.
    """

    name = "gagpo"
    Options = GAGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, groups, reward = self.options, batch.groups, turn_rewards(batch)
        state = number_rows(groups.task, state_labels(batch)[0])
        values = grouped_values(discounted_returns(reward, groups, options.gamma), state)
        steps = generalised_advantage(reward, values, groups, options.gamma, options.gae_lambda)
        steps = normalise(steps, groups.task, groups.tasks, scale=self.config.scale_rewards == "group")
        return _credit(batch, outcome(batch, self.config), steps, steps, state, {"state_value": values})


# Monte Carlo: each turn's advantage from rollouts of the policy, the expensive upper bound of every table


@dataclass(frozen=True)
class MonteCarloOptions:
    walks: PositiveCount = option(8, "Monte Carlo rollouts a state on average, in groups whose rewards differ.")


@register
class MonteCarlo(Baseline):
    """A_MC = V(next state) - V(state) on every token of a turn, V the mean reward of Monte Carlo rollouts.

    No skill, no teacher, no encoder; the environment must be deterministic (a function of row, seed and actions), and
    its own reward must be the only one. Like GRPO's advantage A_MC is divided by the deviation of its group's rewards
    (``scale_rewards``), so that both are estimates of one gradient on one scale. Costs some 20 to 50 times the rollout.

    Source: VinePPO (Kazemnejad et al., ICML 2025), whose steps are lines of reasoning. Here they are turns, rollouts
    are pooled over siblings, and values are backed up. Beyond the paper's table.
    """

    name = "monte_carlo"
    Options = MonteCarloOptions
    needs_turn_advantages = True

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        if batch.turn_advantages is None:
            raise ValueError(
                "monte_carlo needs batch.turn_advantages: measure them by rollouts from the batch's states"
            )
        found = outcome(batch, self.config)
        advantage = torch.nan_to_num(batch.turn_advantages.double())
        if self.config.scale_rewards == "group":
            groups, once = batch.groups, batch.groups.position == 0
            centred = normalise(batch.reward.double(), groups.task, groups.tasks, once, scale=False)
            advantage = advantage / (deviation(centred, groups.task, groups.tasks, once.double()) + EPSILON)
        metrics = (
            {"credit/measured_share": float(batch.turn_advantages.isfinite().double().mean())} if len(batch) else {}
        )
        return credit_of(batch, found, advantage, metrics, {"monte_carlo": batch.turn_advantages})
