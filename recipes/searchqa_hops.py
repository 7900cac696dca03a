"""AlignOPSD on questions of several hops: 4 to 8 turns of searching and reading, one reward at the end.

    python recipes/searchqa_hops.py
    python recipes/searchqa_hops.py --method grpo --seed 1 --output_dir outputs/hops_grpo_1

The policy's thinking states its situation and its skills each name one kind of mistake (docs/searchqa.md). Needs 2
cores and 4 GB.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("searchqa_hops")
