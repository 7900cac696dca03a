"""The parts that `AlignOPSDTrainer` holds: each stands alone and is given what it needs."""
