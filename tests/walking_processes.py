"""Run by `test_fidelity_processes.py` under torchrun: a round with walks on each process, saved for comparison."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fakes.toy import ToyEnvironment, build_model, build_tokenizer
from two_processes import OneTurnOnTheSecondProcess, run

WALKING = {"method": "monte_carlo", "method_options": {"walks": 4}, "fidelity_every": 1, "fidelity_walks": 4}

if __name__ == "__main__":
    target = Path(sys.argv[1])
    build_model(build_tokenizer()).save_pretrained(target / f"policy{os.environ['RANK']}")
    run(target, "walking", ToyEnvironment, beta=0.0, **WALKING)
    run(target, "uneven", OneTurnOnTheSecondProcess, beta=0.0, **WALKING)
