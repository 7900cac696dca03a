"""AlignOPSD on generated ALFWorld games with the shipped policy of a million parameters: no GPU, no download.

    pip install -c constraints.txt -e ".[alfworld]"      # compiles a planner: gcc, g++, make, cmake
    python recipes/alfworld_tiny.py
    python recipes/alfworld_tiny.py --method grpo --seed 1 --output_dir outputs/alfworld_grpo_1

Evaluates 120 games of all six types in rooms like those of training, trains, evaluates again, and leaves results.json,
trajectories with credit traces, a checkpoint and a model card under outputs/alfworld_tiny. Needs 2 cores and 4 GB; the
first run generates 420 games (about a minute) and keeps them.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("alfworld_tiny")
