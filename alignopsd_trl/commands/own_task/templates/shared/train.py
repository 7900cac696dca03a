"""The recipe: `python train.py --plan`, `python train.py --method grpo --output_dir outputs/grpo`."""

from pathlib import Path

from alignopsd_trl.commands.launch.presets import LAPTOP
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.commands.own_task.first_policy import first_policy
from alignopsd_trl.commands.own_task.options import WarmStartConfig

HERE = Path(__file__).parent
START = WarmStartConfig(model="tiny")
PRESET = {
    **LAPTOP,  # two cores; a node takes its own: bf16, learning rate, vLLM, ...
    "environment": "my_task",
    "model_name_or_path": str(HERE / "policy"),  # or a hub id
    "max_prompt_length": 512,
    "max_completion_length": 64,  # of one turn
    "tasks_per_round": 8,
    "num_generations": 8,  # siblings a task
    "rounds": 8,
    "panel_limit": 100,
}

if __name__ == "__main__":
    first_policy("my_task", PRESET["model_name_or_path"], config=START)  # unless it is there
    main("my_task", preset=PRESET)
