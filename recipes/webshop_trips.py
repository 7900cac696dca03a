"""AlignOPSD on trips: three requests in one episode of the embedded WebShop, 12 to 24 turns, one reward at the end.

    python recipes/webshop_trips.py
    python recipes/webshop_trips.py --method grpo --seed 1 --output_dir outputs/trips_grpo_1

The policy's thinking states its situation and its skills each name one kind of mistake (docs/webshop.md). Needs 2 cores
and 4 GB.
"""

from alignopsd_trl.commands.launch.recipe import main

if __name__ == "__main__":
    main("webshop_trips")
