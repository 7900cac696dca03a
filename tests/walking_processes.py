"""Run by `test_fidelity_processes.py` under torchrun: rounds with walks, and an evaluation, saved for comparison."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from fakes.toy import ToyEnvironment, build_model, build_tokenizer, toy_dataset
from fakes.trainers import make_trainer
from two_processes import OneTurnOnTheSecondProcess, run

WALKING = {"method": "monte_carlo", "method_options": {"walks": 4}}

if __name__ == "__main__":
    target = Path(sys.argv[1])
    build_model(build_tokenizer()).save_pretrained(target / f"policy{os.environ['RANK']}")
    run(target, "walking", ToyEnvironment, {"beta": 0.0, **WALKING})
    run(target, "uneven", OneTurnOnTheSecondProcess, {"beta": 0.0, **WALKING})
    own = {"policy": target / f"policy{os.environ['RANK']}", "parts": {"eval_dataset": toy_dataset(5)}}
    torch.save(make_trainer(target / "evaluated", **own).evaluate(), target / f"evaluated_{os.environ['RANK']}.pt")
