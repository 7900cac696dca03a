"""One of the seven tasks with SmolLM2: demonstrations, a warm start, an evaluation, RL, an evaluation.

    python research/six_tasks/recipe.py TASK [--method grpo] [--seed 1] ...

Half of the demonstrations are played under the skill, so that the first policy reads it; then the policy without the
skill follows the frozen first policy with it, or learns by GRPO. The settings are the same for all seven tasks.
"""

import sys
from pathlib import Path

from alignopsd_trl.commands.launch.presets import SMOLLM2
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.commands.own_task.first_policy import first_policy
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start.precision import bfloat16_pays

TASKS = ("account", "adventure", "booking", "cards", "form", "parcels", "sorting")
START = WarmStartConfig(model="smollm2", batch_size=8, learning_rate=2e-4, max_steps=160, until_read=0.95)


def preset(task):
    return {
        **SMOLLM2,
        "environment": task,
        "model_name_or_path": f"outputs/six_tasks/{task}/start",
        "max_prompt_length": 320,
        "max_completion_length": 96,
        "skill_tokens": 48,
        "rounds": 5,
        "teacher_model_kind": "base",
        "auxiliary_loss": "distribution",
        "distribution_coefficient": 10.0,
        "panel_limit": 40,
        "bf16": bfloat16_pays(576),
        "output_dir": f"outputs/six_tasks/{task}/trained",
    }


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TASKS:
        sys.exit(f"name one of {', '.join(TASKS)}")
    task = sys.argv.pop(1)
    sys.path.insert(0, str(Path(__file__).parent))
    chosen = preset(task)
    start = chosen["model_name_or_path"]
    first_policy(task, start, config=START, episodes=400, player=f"{task}:play", preset=chosen)
    main(f"six_tasks_{task}", preset=chosen)
