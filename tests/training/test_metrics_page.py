"""docs/metrics.md and the log: each logged number stands on the page, and each name of the page is logged somewhere."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.sweeps import mostly_full
from fakes.toy import toy_dataset
from fakes.trainers import trained
from transformers import Trainer, trainer_utils
from trl.trainer import grpo_trainer

from alignopsd_trl.methods import get_method, method_names

ROOT = Path(__file__).parents[2]
CODE = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "alignopsd_trl").rglob("*.py"))
TABLE = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
PAGE = [name for cell in TABLE for name in re.findall(r"`([^`]+)`", cell)]
PATTERNS = [re.compile(re.sub(r"<\w+>", r".+", re.sub(r"<n>", r"\\d+", name))) for name in PAGE]
RUNS = {
    "AlignOPSD": {"method": "align_opsd", "beta": 0.1, "eval_strategy": "steps", "similarity_threshold": 0.1},
    "auxiliary": {"method": "align_opsd", "auxiliary_loss": "alignment", "credit_spread": 0.4},
    "conversation": {"method": "grpo", "history": "conversation"},
    "iterations": {"method": "grpo", "num_iterations": 2, "max_steps": 2},
    **{name: {"method": name} for name in method_names() if get_method(name).trains},
}


@pytest.mark.parametrize("options", mostly_full(RUNS.values()), ids=RUNS)
def test_every_logged_number_is_on_the_page(options: dict[str, Any], tmp_path: Path) -> None:
    parts = {"eval_dataset": toy_dataset(4)} if "eval_strategy" in options else {}
    trainer = trained(tmp_path, script=False, parts=parts, **options)
    logged = {name for entry in trainer.state.log_history for name in entry}
    missing = {name for name in logged if not any(pattern.fullmatch(name) for pattern in PATTERNS)}
    assert logged and not missing


def test_every_name_of_a_group_in_the_code_is_on_the_page() -> None:
    groups = {name.partition("/")[0] for name in PAGE if "/" in name} - {"rewards", "sampling"}
    written = set(re.findall(rf'"((?:{"|".join(sorted(groups))})/[a-z_]+)"', CODE))
    assert len(written) > 30 and written <= {*PAGE, "stop/environment_error", "stop/prompt_too_long"} | {
        "fidelity/tasks",
        "fidelity/turns",
    }


def test_every_name_of_the_page_is_logged_by_some_code() -> None:
    others = "".join(map(inspect.getsource, (grpo_trainer, Trainer, trainer_utils)))
    for name in PAGE:
        fixed = [part for part in re.split(r"<\w+>", name) if part not in ("", "/")]
        metric = fixed[-1].removeprefix("/") if fixed[0] == "drift/step_" else fixed[0]
        stem = metric.removeprefix("eval_").removeprefix("train_")
        assert metric in CODE + others or stem in CODE + others, name


def test_names_are_on_the_page_once() -> None:
    assert len(PAGE) == len(set(PAGE)) > 70
