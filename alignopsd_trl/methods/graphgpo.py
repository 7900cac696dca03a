"""GraphGPO: step credit without a teacher, from the graph that all rollouts of a task make."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from alignopsd_trl.common.options import Share, Size
from alignopsd_trl.methods.advantages import normalise
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, step_credit
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.registry import register
from alignopsd_trl.methods.state_credit import graph_returns, state_labels, turn_rewards
from alignopsd_trl.turns import TurnBatch, number_rows


@dataclass(frozen=True)
class GraphGPOOptions:
    distance_discount: Share = field(
        default=0.1, metadata={"help": "omega: R of an edge shrinks by it with each step to the goal."}
    )
    graph_weight: Size = field(default=1.0, metadata={"help": "beta_G: weight of the graph advantage."})
    episode_weight: Size = field(default=1.0, metadata={"help": "beta_E: weight of the outcome advantage."})


@register
class GraphGPO(Baseline):
    """beta_E A + beta_G A^G: turns that leave the same state are compared by how near to the goal they lead.

    The observations of all rollouts of a task are the nodes of a graph, and turns are its edges, of length 1. A turn
    has R = r omega^(d + 1), with d the shortest distance from its end to the goal over the turns of all rollouts. A^G
    is R minus its mean over the turns that leave the same state, divided by their deviation (``scale_rewards="none"``:
    not divided). So a turn that brings the goal nearer is credited in a failed rollout too. No skill, no teacher, no
    further forward pass; everything is detached.

    Source: GraphGPO (arXiv 2605.26684, Eq. 4 and its group statistics); omega as in a public reproduction of the
    authors' recipe. Departure: every turn with a positive reward enters the goal, with that reward as r; with one
    terminal reward that is the paper's formula. Confidence: high for the formula, medium for omega.
    """

    name = "graphgpo"
    Options = GraphGPOOptions
    options: GraphGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found, task = self.options, outcome(batch, self.config), batch.groups.task
        before, after = state_labels(batch)
        returns = graph_returns(turn_rewards(batch), task, before, after, options.distance_discount)
        state = number_rows(task, before)
        scale = self.config.scale_rewards == "group"
        steps = normalise(returns, state, len(torch.bincount(state)), scale=scale)
        shaped = options.episode_weight * found.advantage + options.graph_weight * steps
        return step_credit(batch, found, shaped, steps, state)
