"""Vanilla and Skill-Prompt*: the initial policy, evaluated without and with the skill in its prompt."""

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
