"""Rows without a credit of their own: the initial policy, without and with skills, and GRPO with skills."""

from __future__ import annotations

from alignopsd_trl.methods.baseline import Baseline
from alignopsd_trl.methods.registry import register


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
