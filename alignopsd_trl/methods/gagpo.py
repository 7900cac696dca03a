"""GAGPO: step credit without a teacher, by GAE over values that are means of returns from the same state."""

from __future__ import annotations

from dataclasses import dataclass, field

from alignopsd_trl.common.options import Share
from alignopsd_trl.methods.advantages import normalise
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, step_credit
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.objectives import discounted_returns
from alignopsd_trl.methods.registry import register
from alignopsd_trl.methods.state_credit import generalised_advantage, grouped_values, state_labels, turn_rewards
from alignopsd_trl.turns import TurnBatch, number_rows


@dataclass(frozen=True)
class GAGPOOptions:
    gamma: Share = field(default=0.95, metadata={"help": "Discount of returns."})
    gae_lambda: Share = field(default=0.8, metadata={"help": "lambda: 0 takes one step, 1 all that follow."})


@register
class GAGPO(Baseline):
    """GAE of turns over V(s), the mean discounted return of the task's turns that start in s; then normalised.

    delta_k = r_k + gamma V(s_{k+1}) - V(s_k), with V = 0 after the end and r_k the turn's reward; A_k = sum of
    (gamma lambda)^j delta_{k+j}. Mean and deviation are those of all turns of the task (``scale_rewards="none"``: not
    divided). The deltas of a task add up to 0, so that centring changes a turn little. A_k replaces the outcome
    advantage. No skill, no teacher, no further forward pass; all of it is detached.

    The paper's importance ratio of an action, the geometric mean over its tokens, is ``importance_sampling_level=
    "sequence"`` of the run, where a row is a turn.

    Source: public summaries of GAGPO (arXiv 2605.13217); its equations were not seen. The population of mean and
    deviation (the turns of a task) and the default of lambda are our choice. Confidence: medium.
    """

    name = "gagpo"
    Options = GAGPOOptions
    options: GAGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found, groups = self.options, outcome(batch, self.config), batch.groups
        reward = turn_rewards(batch)
        state = number_rows(groups.task, state_labels(batch)[0])
        values = grouped_values(discounted_returns(reward, groups, options.gamma), state)
        steps = generalised_advantage(reward, values, groups, options.gamma, options.gae_lambda)
        steps = normalise(steps, groups.task, groups.tasks, scale=self.config.scale_rewards == "group")
        return step_credit(batch, found, steps, steps, state, {"state_value": values})
