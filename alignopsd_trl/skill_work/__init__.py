"""Skills measured and skills written: ``alignopsd skills check BANK`` and ``alignopsd skills write RUN``."""
