"""AlignOPSD on questions of several hops on one GPU of 24 GiB: Qwen2.5-1.5B-Instruct, LoRA, vLLM on the same GPU.

    python recipes/hops_1_5b.py
    python recipes/hops_1_5b.py --method grpo --output_dir outputs/hops_1_5b_grpo

As recipes/webshop_1_5b.py, which says more, on searchqa_hops: 4 to 8 turns of searching and reading, one reward at the
end. No GPU has run it yet.
"""

from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.recipes.webshop_1_5b import PRESET as WEBSHOP

PRESET = {
    **WEBSHOP,
    "environment": "searchqa_hops",
    "environment_options": None,
    "panel": "test",
    "action_filter": "none",
    "max_prompt_length": 1024,
    "max_turns": None,  # the environment's own
}

if __name__ == "__main__":
    main("hops_1_5b", preset=PRESET)
