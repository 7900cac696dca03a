"""Measures whether this machine multiplies bfloat16 matrices faster than float32 ones."""

from __future__ import annotations

import time

import torch

TOKENS, SECONDS, GAIN = 512, 0.3, 1.25
"""Rows of the multiplied matrix, the time for each type, and the factor from which fewer digits pay."""


def bfloat16_pays(width: int) -> bool:
    """Returns whether layers of a width, the model's ``hidden_size``, are faster in bfloat16, on the GPU if there is
    one. Takes a second."""
    return seconds_of_product(width, torch.float32) >= GAIN * seconds_of_product(width, torch.bfloat16)


def seconds_of_product(width: int, kind: torch.dtype) -> float:
    """Returns the seconds of `(TOKENS, width) @ (width, width)` in a type: the fewest of many measurements."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    left, right = (torch.ones(rows, width, dtype=kind, device=device) for rows in (TOKENS, width))
    fewest, end = float("inf"), time.perf_counter() + SECONDS
    while (begun := time.perf_counter()) < end:
        (left @ right)[0, 0].item()  # waits for a GPU
        fewest = min(fewest, time.perf_counter() - begun)
    return fewest
