"""``python -m alignopsd_trl.evaluation``."""

from alignopsd_trl.evaluation.command import main

if __name__ == "__main__":
    main()
