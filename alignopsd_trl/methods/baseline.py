"""Common parts of the baselines: options, outcome advantage, and the teacher's log-probs of the sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from alignopsd_trl.common.options import as_mapping, read_options
from alignopsd_trl.methods.base import Credit, Teacher, register
from alignopsd_trl.methods.grpo import GRPO, OutcomeAdvantage, token_advantages
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


class Baseline(GRPO):
    """A method that starts from GRPO's outcome advantages and has options of its own.

    ``group_statistics``, ``scale_rewards`` and ``invalid_action_penalty`` of the config mean the same as for GRPO. The
    penalty's residual is added after the method's weights.
    """

    Options: ClassVar[type] = NoOptions

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.options = read_options(self.Options, as_mapping(config.method_options), f"method {self.name!r}")


def credit_of(
    batch: TurnBatch,
    found: OutcomeAdvantage,
    shaped: torch.Tensor,
    metrics: dict[str, float],
    trace: dict[str, torch.Tensor],
    gap: torch.Tensor | None = None,
) -> Credit:
    """Makes the credit of a baseline.

    Args:
        found: the outcome advantage, recorded as ``outcome_advantage``, with its metrics and the residual of invalid
            actions.
        shaped: ``(M,)`` or ``(M, L)``, the method's own advantages. `checked_credit` records their mean over each
            turn's tokens as ``advantage``.
        gap: ``(M, L)``, recorded token by token.
    """
    residual = {} if found.residual is None else {"residual": found.residual}
    columns = {"outcome_advantage": found.advantage} | residual | trace
    return Credit(
        token_advantages(shaped, batch.policy_mask, found.residual),
        found.metrics | metrics,
        trace={name: column.tolist() for name, column in columns.items()} | token_gaps(batch, identity=gap),
    )


def identity_scores(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """Returns l+ of every turn under its own privileged view, ``(M, L)`` float32, 0 outside the mask."""
    rows = torch.arange(len(batch), device=batch.task.device)
    return teacher.score(batch, rows, rows)


def identity_gap(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """Returns delta, ``(M, L)`` float32: the log-prob of each token under the turn's own privileged view minus that of
    the policy that sampled it; 0 for tokens that are not scored."""
    assert batch.student_log_probs is not None, "the method declares needs_student_log_probs"
    return (identity_scores(batch, teacher) - batch.student_log_probs) * batch.scored_mask


def token_mean(batch: TurnBatch, name: str, values: torch.Tensor) -> dict[str, float]:
    """Returns a metric, the mean over the scored tokens of this process; empty without any."""
    return {name: float(values[batch.scored_mask].mean())} if batch.scored_mask.any() else {}


@torch.no_grad()
def token_gaps(batch: TurnBatch, **gaps: torch.Tensor | None) -> dict[str, list[Any]]:
    """Makes the columns ``token_<name>_gaps`` of a trace.

    Args:
        gaps: ``(M, L)`` log-prob of each sampled token under a privileged view less the student's, in nats.

    Returns:
        For each gap, M float16 arrays with a value for each token of the response; `None` for a turn that was not
        scored or is not optimised. float16 keeps three digits of a gap below 2,048 nats.
    """
    mask, columns = batch.scored_mask, {}
    for name, gap in gaps.items():
        if gap is not None:
            parts = gap[mask].half().cpu().split(mask.sum(1).tolist())
            columns[f"token_{name}_gaps"] = [part.numpy() if len(part) else None for part in parts]
    return columns


# Rows without a credit of their own: the initial policy, without and with skills, and GRPO with skills


@register
class Vanilla(Baseline):
    """The initial weights, evaluated without skills. Nothing is trained. Confidence: high."""

    name = "vanilla"
    trains = False


@register
class SkillPrompt(Vanilla):
    """Vanilla's weights, evaluated with skills: a starred row of the paper's table. Confidence: high."""

    name = "skill_prompt"
    skills_in_evaluation = True


@register
class SkillGRPO(Baseline):
    """GRPO's objective on skill-conditioned rollouts.

    Contexts: skill in the rollout prompt, hence in every context that the loss evaluates, the reference included; no
    teacher. The table's two rows are one checkpoint: Skill-GRPO is evaluated without skills (the default here),
    Skill-GRPO* with them (`evaluate --skills`).

    Source: the baselines' release, which puts the skill in front of every observation; ours fills the template's slot.
    Confidence: high.
    """

    name = "skill_grpo"
    skills_in_rollout = True
