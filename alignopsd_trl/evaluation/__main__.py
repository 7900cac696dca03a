"""``python -m alignopsd_trl.evaluation``."""

from alignopsd_trl.evaluation.command import command

if __name__ == "__main__":
    command()
