"""AlignOPSD on Search-QA with Qwen2.5-3B-Instruct: the paper's protocol.

    accelerate launch --config_file recipes/accelerate/fsdp2.yaml recipes/searchqa_3b.py

    ... --plan                  what would run, without loading weights (on any machine)
    ... --preset released       the published launcher's settings
    ... --method grpo           the same rollouts and updates, plain GRPO

128 tasks x 8 rollouts a round, 150 rounds, 4 turns, prompts of 4,096 and responses of 512 tokens. Without data and a
retriever (--environment_options '{"data": "FOLDER", "backend": "http", "retrieval": {"urls": ["URL"]}}'; see
docs/searchqa.md) it trains on the embedded closed world. The paper used 4 A800 GPUs.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("searchqa_3b")
