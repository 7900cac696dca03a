"""AlignOPSD on WebShop with Qwen2.5-7B-Instruct: the paper's protocol.

    accelerate launch --config_file recipes/accelerate/fsdp2.yaml recipes/webshop_7b.py \
        --environment_options '{"data_dir": "DATA"}'

    ... --plan                  what would run, without loading weights (on any machine)
    ... --preset released       the published launcher's settings
    ... --method grpo           the same rollouts and updates, plain GRPO

16 tasks x 8 rollouts a round, 150 rounds, 15 turns, prompts of 4,096 and responses of 512 tokens. DATA is a folder with
WebShop's official files (items_shuffle*.json, items_ins_v2*.json); without it the embedded catalogue is played. The
weights of the policy and of the encoder (Qwen/Qwen3-Embedding-0.6B) come from the hub or from local paths
(--model_name_or_path, --encoder). Sampling with vLLM: --use_vllm --vllm_mode colocate. The paper used 2 A800 GPUs of
80 GB. By ``--plan`` all weights with an optimizer in float32 do not fit there: 87 GiB a GPU, 111 with vLLM beside it.
The launcher's file takes 8; on 2: --use_peft, or --tokens_per_forward 4608 --beta 0 --vllm_enable_sleep_mode.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("webshop_7b")
