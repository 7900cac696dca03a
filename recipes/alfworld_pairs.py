"""AlignOPSD on games that ask for two things in one place: 8 to 13 turns, one reward at the end.

    python recipes/alfworld_pairs.py
    python recipes/alfworld_pairs.py --method grpo --seed 1 --output_dir outputs/pairs_grpo_1

The policy's thinking states its situation and its skills each name one kind of mistake (docs/alfworld.md). Needs 2
cores and 4 GB, and not the extra alfworld.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("alfworld_pairs")
