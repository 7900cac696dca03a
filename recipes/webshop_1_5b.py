"""AlignOPSD on WebShop on one GPU of 24 GiB: Qwen2.5-1.5B-Instruct, LoRA in bfloat16, vLLM on the same GPU.

    pip install -c constraints-gpu.txt -e ".[vllm]"
    python recipes/webshop_1_5b.py --plan --plan_for one_gpu --gpu_gib 24       what memory that takes (on any machine)
    python recipes/webshop_1_5b.py
    python recipes/webshop_1_5b.py --method grpo --output_dir outputs/webshop_1_5b_grpo

The teacher is the model as it was, with the skill in its prompt; the policy follows its whole distribution. A round is
4 tasks x 8 rollouts of up to 15 turns on the embedded catalogue, a quarter of a million sampled tokens at most. No GPU
has run it yet. On a GPU without bfloat16, such as a T4: --bf16 False --fp16 True --dtype float16.
"""

from alignopsd_trl.commands.launch.presets import BACKBONES, preset
from alignopsd_trl.commands.launch.recipe import main

PRESET = {
    **preset("webshop_3b"),
    "model_name_or_path": BACKBONES["1.5b"].hub_id,
    "encoder": "lexical",
    "use_peft": True,
    "lora_r": 32,
    "lora_alpha": 64,
    "lora_target_modules": ["all-linear"],
    "dtype": "bfloat16",
    "use_vllm": True,
    "vllm_mode": "colocate",
    "teacher_model_kind": "base",
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,  # as in the studies; so are the iterations
    "num_iterations": 4,
    "updates_per_round": 1,
    "learning_rate": 2e-5,
    "beta": 0.0,
    "max_prompt_length": 3072,
    "max_completion_length": 256,
    "tasks_per_round": 4,
    "rounds": 50,
    "save_rounds": 5,
    "panel": "test",
    "panel_limit": 100,
}

if __name__ == "__main__":
    main("webshop_1_5b", preset=PRESET)
