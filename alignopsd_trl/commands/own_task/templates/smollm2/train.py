"""The recipe: `python train.py --plan`, `python train.py --method grpo --output_dir outputs/grpo`."""

from pathlib import Path

from alignopsd_trl.commands.launch.presets import SMOLLM2
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.commands.own_task.first_policy import first_policy
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start.precision import bfloat16_pays

HERE = Path(__file__).parent
START = WarmStartConfig(model="smollm2", batch_size=8, learning_rate=2e-4, minutes=6, until_read=0.95)
PRESET = {
    **SMOLLM2,  # two cores; a node takes its own: learning rate, vLLM, ...
    "environment": "my_task",
    "model_name_or_path": str(HERE / "policy"),  # or a hub id
    "teacher_model_kind": "base",  # the policy follows what the first policy says under the skill
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,
    "max_prompt_length": 512,
    "max_completion_length": 64,  # of one turn
    "tasks_per_round": 6,
    "num_generations": 4,  # siblings a task
    "rounds": 8,
    "panel_limit": 40,
}

if __name__ == "__main__":
    first_policy("my_task", PRESET["model_name_or_path"], config=START)  # unless it is there
    main("my_task", preset={**PRESET, "bf16": bfloat16_pays(576)})  # its layers' width
