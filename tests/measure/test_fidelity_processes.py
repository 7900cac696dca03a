"""Two real processes: walks of equally many calls, whatever either has to walk, and one process's evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.toy import toy_dataset
from fakes.trainers import make_trainer
from launching import TESTS, run_script

pytestmark = pytest.mark.full


def test_two_processes_walk_together(tmp_path: Path) -> None:
    run_script(TESTS / "walking_processes.py", tmp_path, processes=2)
    for name in ("walking", "uneven"):
        ranks = [torch.load(tmp_path / f"{name}_{rank}.pt", weights_only=False) for rank in range(2)]
        calls = [rank["generations"] for rank in ranks]
        assert len(calls[0]) > 6 and calls[0] == calls[1]
        assert ranks[0]["loss"] == ranks[1]["loss"]
        weights = [torch.cat([value.flatten() for value in rank["weights"].values()]) for rank in ranks]
        assert torch.equal(*weights)
    alone = make_trainer(tmp_path / "alone", parts={"eval_dataset": toy_dataset(5)}).evaluate()
    for rank in range(2):
        both = torch.load(tmp_path / f"evaluated_{rank}.pt", weights_only=False)
        assert both.keys() == alone.keys() and both["eval_episodes/turns"] > 1
        for name in {name for name in alone if "second" not in name and "runtime" not in name}:
            assert both[name] == pytest.approx(alone[name]), name
