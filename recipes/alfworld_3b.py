"""AlignOPSD on ALFWorld with Qwen2.5-3B-Instruct: the paper's protocol.

    accelerate launch --config_file recipes/accelerate/fsdp2.yaml recipes/alfworld_3b.py

    ... --plan                  what would run, without loading weights (on any machine)
    ... --preset released       the published launcher's settings
    ... --method grpo           the same rollouts and updates, plain GRPO

16 tasks x 8 rollouts a round, 150 rounds, 50 turns, prompts of 2,048 and responses of 512 tokens. Needs the extra
alfworld. Without official games ($ALFWORLD_DATA and --environment_options '{"games": "official"}') it trains on
generated ones. The paper used 8 A800 GPUs.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("alfworld_3b")
