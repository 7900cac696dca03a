"""Skills, which the teacher reads: banks with retrieval, dataset columns, and user functions."""

from alignopsd_trl.skills.bank import SkillBank
from alignopsd_trl.skills.column import CONTEXT, SkillColumn
from alignopsd_trl.skills.function import SkillFunction
from alignopsd_trl.skills.loading import SkillSpec, foreign_bank, load_skills
from alignopsd_trl.skills.rendering import Rendered, Retrieved, render, skill_budget
from alignopsd_trl.skills.schema import SkillBankError
from alignopsd_trl.skills.source import skill_source

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
