"""AlignOPSD on the embedded Search-QA with the shipped policy of a million parameters: no GPU, no download.

    python recipes/searchqa_tiny.py
    python recipes/searchqa_tiny.py --method grpo --seed 1 --output_dir outputs/searchqa_grpo_1

Evaluates the 200 test questions, trains, evaluates again, and leaves results.json, trajectories with credit traces, a
checkpoint and a model card under outputs/searchqa_tiny. Needs 2 cores and 2 GB.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("searchqa_tiny")
