"""The recipe for MODEL_NAME: `python train.py --plan`, `python train.py --method grpo --output_dir outputs/grpo`.

The model is trained as it comes. Before the first round it plays 16 training tasks, without the privileged text and
with it, and the screen says what follows. docs/launch.md, "A model from the Hub", says where the numbers come from.
"""

from pathlib import Path

from alignopsd_trl.commands.launch.presets import ONE_GPU
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.commands.own_task.as_it_comes import as_it_comes
from alignopsd_trl.commands.own_task.options import WarmStartConfig

HERE = Path(__file__).parent
MODEL = "MODEL_ID"
POLICY = HERE / "policy"  # a warm start of it, made only if the model can't play the form
START = WarmStartConfig(model=MODEL, use_peft=True, until_read=0.95)
ROUNDS = 48
PRESET = {
    **ONE_GPU,  # MACHINE
    "environment": "my_task",
    "model_name_or_path": str(POLICY if (POLICY / "config.json").is_file() else MODEL),
    "teacher_model_kind": "base",  # the policy follows what the model itself says under the privileged text
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,
    "distribution_rounds": ROUNDS // 2,  # then reward goes on alone, as `alignopsd measure` advises
    # SETTINGS
    "rounds": ROUNDS,
    "panel_limit": 100,
}

if __name__ == "__main__":
    main("my_task", preset=as_it_comes("my_task", PRESET, POLICY, config=START))
