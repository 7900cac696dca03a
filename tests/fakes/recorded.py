"""Recorded runs of webshop_tiny, two steps of three tasks each: ``aligned``, and ``grpo`` with what GRPO records."""

from pathlib import Path

RUNS = Path(__file__).parents[1] / "data" / "runs"
