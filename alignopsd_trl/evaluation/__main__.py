"""Runs ``python -m alignopsd_trl.evaluation``."""

from alignopsd_trl.launch.evaluate import command

if __name__ == "__main__":
    command()
