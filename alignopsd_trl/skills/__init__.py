"""Skills, which the teacher reads: banks with retrieval, dataset columns, and user functions."""

from alignopsd_trl.skills.bank import SkillBank
from alignopsd_trl.skills.function import CONTEXT, SkillColumn, SkillFunction
from alignopsd_trl.skills.loading import SkillSpec, foreign_bank, load_skills, skill_source
from alignopsd_trl.skills.rendering import Rendered, Retrieved, render, skill_budget
from alignopsd_trl.skills.schema import SkillBankError

__all__ = [
    "CONTEXT",
    "Rendered",
    "Retrieved",
    "SkillBank",
    "SkillBankError",
    "SkillColumn",
    "SkillFunction",
    "SkillSpec",
    "foreign_bank",
    "load_skills",
    "render",
    "skill_budget",
    "skill_source",
]
