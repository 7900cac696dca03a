"""Turn credit without a teacher from the milestones that an environment reports on the way (`Step.milestone`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from alignopsd_trl.common.options import Share, Size, option
from alignopsd_trl.methods.base import Credit, Teacher, register
from alignopsd_trl.methods.baseline import Baseline, credit_of
from alignopsd_trl.methods.grpo import imitated, normalise, outcome
from alignopsd_trl.turns import Groups, TurnBatch, number_rows

OPEN = -1


@dataclass(frozen=True)
class Segments:
    """The segment of each turn, which ends at the rollout's next milestone, with that turn.

    Args:
        milestone: ``(M,)`` int64, equal for equal names; `OPEN` after the rollout's last milestone.
        left: ``(M,)`` int64 turns from here to the segment's end, 0 at its last turn.
        before: ``(M,)`` int64 milestones that the rollout reached before this turn.
    """

    milestone: torch.Tensor
    left: torch.Tensor
    before: torch.Tensor

    @classmethod
    def of(cls, milestones: Sequence[str | None], groups: Groups) -> Segments:
        """Splits rollouts at the turns that have a milestone; ``milestones`` are the names of all M rows."""
        number = {name: place for place, name in enumerate(dict.fromkeys(milestones))}
        milestone, left, before = (torch.full_like(groups.task, value) for value in (OPEN, 0, 0))
        for rows in groups.by_rollout:
            names = [milestones[row] for row in rows.tolist()]
            ends = [place for place, name in enumerate(names) if name is not None]
            start = 0
            for count, end in enumerate([*ends, len(names) - 1]):
                part = rows[start : end + 1]
                before[part] = count
                if count < len(ends):
                    milestone[part] = number[names[end]]
                    left[part] = end - torch.arange(start, end + 1, device=rows.device)
                start = end + 1
        return cls(milestone, left, before)

    def rewards(self, reward: float, gamma: float) -> torch.Tensor:
        """Returns ``reward * gamma ** left``, ``(M,)`` float64, and 0 in open segments."""
        return torch.where(self.milestone == OPEN, 0.0, reward * gamma ** self.left.double())


@dataclass(frozen=True)
class BEACONOptions:
    gamma: Share = option(0.95, "A turn's shaped reward shrinks by it with each turn to the segment's end.")
    segment_weight: Size = option(1.0, "lambda: weight of the segment advantage.")
    milestone_reward: Size = option(10.0, "R_ms: shaped reward of a milestone; only matters if rewards are unscaled.")
    attempts: bool = option(
        False, "Compare turns with as many milestones behind them, those that reach no further one too (the code)."
    )


@register
class BEACON(Baseline):
    """A + lambda A^seg: turns compared with those that led their siblings to the same milestone.

    Milestones split a rollout into segments. A turn t of a segment that ends at turn t_k has the shaped reward
    R_ms gamma^(t_k - t); turns after the last milestone have none. A^seg is the shaped reward less its mean over the
    task's turns whose segments end at the milestone of that name, divided by their deviation (``scale_rewards="none"``:
    not divided), and 0 after the last milestone. So the shortest way to a milestone is credited in a failed rollout
    too. Without milestones this is GRPO.

    Source: BEACON (arXiv 2605.06078), from its project page and its published code; the paper's equations were not
    seen. gamma, lambda and the comparison with those that reached the same milestone are stated there; R_ms = 10, the
    reward of a win, is the code's. Its ALFWorld launcher does not divide by deviations and has lambda = 10, gamma =
    0.9. In the code, segments have numbers in place of names and turns after the last milestone count as attempts at
    the next with a reward of 0: ``attempts=true``. Our choice: a single rollout has no advantage, as in all rows.
    Confidence: medium.
    """

    name = "beacon"
    Options = BEACONOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, groups, found = self.options, batch.groups, outcome(batch, self.config)
        parts = Segments.of([turn.milestone for turn in batch.turns], groups)
        reward = parts.rewards(options.milestone_reward, options.gamma)
        group = number_rows(groups.task, parts.before if options.attempts else parts.milestone)
        steps = normalise(reward, group, len(group), scale=self.config.scale_rewards == "group")
        steps = steps.masked_fill(groups.siblings < 2, 0.0)
        shaped = imitated(batch, found.advantage + options.segment_weight * steps)
        done = (parts.milestone != OPEN).double()
        metrics = {"credit/segment_share": float(done.mean())} if len(batch) else {}
        return credit_of(batch, found, shaped, metrics, {"segment_reward": reward, "segment_advantage": steps})
