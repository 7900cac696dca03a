"""The rows of the results table. See `alignopsd_trl.methods.base` for the hooks.

| file | rows |
| --- | --- |
| `grpo` | grpo |
| `baseline` | vanilla, skill_prompt, skill_grpo |
| `distillation` | sdar, skill_sd, opsd, grpo_opsd |
| `gap_weights` | rlsd, step_opsd, agent_opsd |
| `state_credit` | gigpo, hgpo, graphgpo, gagpo, monte_carlo |
| `beacon` | beacon |
| `align_opsd/` | align_opsd and, by its options, the paper's ablations |
"""

from alignopsd_trl.methods.base import (
    Credit,
    Method,
    MethodError,
    Teacher,
    checked_credit,
    get_method,
    method_names,
    register,
)

__all__ = ["Credit", "Method", "MethodError", "Teacher", "checked_credit", "get_method", "method_names", "register"]
