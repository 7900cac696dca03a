"""Skills, which the teacher reads: banks with retrieval, dataset columns, and user functions."""

from alignopsd_trl.skills.bank import Retrieved, SkillBank, render, skill_budget
from alignopsd_trl.skills.loading import CONTEXT, SkillSpec, foreign_bank, load_skills, skill_source
from alignopsd_trl.skills.schema import SkillBankError

__all__ = [
    "CONTEXT",
    "Retrieved",
    "SkillBank",
    "SkillBankError",
    "SkillSpec",
    "foreign_bank",
    "load_skills",
    "render",
    "skill_budget",
    "skill_source",
]
