"""Skill-GRPO: GRPO with the skill in the policy's prompt, in rollouts and in the loss."""

from __future__ import annotations

from alignopsd_trl.methods.baseline import Baseline
from alignopsd_trl.methods.registry import register


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
