"""AlignOPSD on the embedded WebShop with the shipped policy of a million parameters: no GPU, no download.

    python recipes/webshop_tiny.py
    python recipes/webshop_tiny.py --method grpo --seed 1 --output_dir outputs/grpo_1

Evaluates 200 test goals, trains, evaluates again, and leaves results.json, trajectories with credit traces, a
checkpoint and a model card under outputs/webshop_tiny. Needs 2 cores and 2 GB; research/results.md has
times and figures.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("webshop_tiny")
