"""Run by `test_distributed.py` under torchrun: a round and an update on each process, saved for comparison."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from fakes.toy import ToyEnvironment, build_model, build_tokenizer, toy_dataset
from fakes.trainers import losses, make_trainer

from alignopsd_trl.environments.base import Opening
from alignopsd_trl.scoring.trl_scoring import PolicyScorer

OPTIONS = {"method": "align_opsd", "save_trajectories": True, "beta": 0.02, "optim": "sgd", "tokens_per_forward": 300}
AS_ONE = {
    "equal": {},
    "spread": {"credit_spread": 0.1},
    "distribution": {
        "auxiliary_loss": "distribution",
        "distribution_weighting": "evidence",
        "similarity_threshold": 0.1,
        "distribution_rounds": 1,
        "teacher_model_kind": "base",
        "num_iterations": 2,
        "max_steps": 4,
    },
    "continuous": {"method": "rlsd", "script": "seeded", "beta": 0.0, "scale_steps": True},
    "privileged": {"privileged_siblings": 2, "teacher_model_kind": "base", "num_iterations": 2, "max_steps": 4},
}
"""Runs that one process must equal."""


class OneTurnOnTheSecondProcess(ToyEnvironment):
    """Episodes of process 1 end at once, so it has nothing alive while process 0 still plays."""

    def reset(self, **row: Any) -> Opening:
        opening = super().reset(**row)
        self._limit = 1 if os.environ["RANK"] == "1" else self.max_turns
        return opening


WALKING = {"beta": 0.0, "method": "monte_carlo", "method_options": {"walks": 4}}
RUNS: dict[str, tuple[type[ToyEnvironment], dict[str, Any]]] = {
    **{name: (ToyEnvironment, options) for name, options in AS_ONE.items()},
    "uneven": (OneTurnOnTheSecondProcess, {"beta": 0.0}),
    "skipping": (ToyEnvironment, {"beta": 0.0, "tokens_per_forward": 150}),
    "whole": (ToyEnvironment, {"beta": 0.0, "tokens_per_forward": 150, "skip_zero_advantage": False}),
    "still": (ToyEnvironment, {"beta": 0.0, "learning_rate": 0.0, "method": "grpo"}),
    "walking": (ToyEnvironment, WALKING),
    "uneven walking": (OneTurnOnTheSecondProcess, WALKING),
}
QUICK = ("equal", "uneven", "still")


def count_forwards(trainer: Any) -> Counter:
    counts: Counter = Counter()

    def counted(name: str, inner: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return inner(*arguments, **options)

        return call

    PolicyScorer.plain = counted("plain", PolicyScorer.plain)
    PolicyScorer.shared = counted("shared", PolicyScorer.shared)
    trainer._compute_loss = counted("loss", trainer._compute_loss)
    return counts


def run(folder: Path, name: str, factory: Any, options: dict[str, Any]) -> None:
    own, policy = folder / name / f"rank{os.environ['RANK']}", folder / f"policy{os.environ['RANK']}"
    trainer = make_trainer(own, factory=factory, policy=policy, **OPTIONS | options)
    assert trainer.accelerator.num_processes == 2, "not a two-process run"
    counts = count_forwards(trainer)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    result = {
        "loss": losses(trainer),
        "rows": trainer.seen_rows,
        "gradients": trainer.seen_gradients,
        "weights": model.state_dict(),
        "generations": getattr(trainer, "generation_calls", None),
        "forwards": dict(counts),
    }
    torch.save(result, folder / f"{name}_{os.environ['RANK']}.pt")


if __name__ == "__main__":
    gc.freeze()  # what was imported: each training would look through it for garbage
    target = Path(sys.argv[1])
    # before the processes know of each other, so that each writes the (same) weights
    build_model(build_tokenizer()).save_pretrained(target / f"policy{os.environ['RANK']}")
    for name in sys.argv[2:]:
        run(target, name, *RUNS[name])
    if "walking" in sys.argv[2:]:
        own = {"policy": target / f"policy{os.environ['RANK']}", "parts": {"eval_dataset": toy_dataset(5)}}
        torch.save(make_trainer(target / "evaluated", **own).evaluate(), target / f"evaluated_{os.environ['RANK']}.pt")
