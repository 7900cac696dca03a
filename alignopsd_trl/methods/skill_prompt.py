"""Skill-Prompt*: the initial policy, evaluated with the skill in its prompt."""

from __future__ import annotations

from alignopsd_trl.methods.baseline import Baseline
from alignopsd_trl.methods.registry import register


@register
class SkillPrompt(Baseline):
    """Vanilla's weights, evaluated with skills: a starred row of the paper's table. Nothing is trained.

    Confidence: high.
    """

    name = "skill_prompt"
    trains = False
    skills_in_evaluation = True
