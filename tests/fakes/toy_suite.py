"""The toy game as an environment that a recipe can name: ``--environment tests.fakes.toy_suite``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.toy import ToyEnvironment, build_model, build_tokenizer, toy_dataset  # noqa: E402

from alignopsd_trl.environments.base import Step, Suite  # noqa: E402
from alignopsd_trl.environments.panel import TaskPanel  # noqa: E402


class Broken(ToyEnvironment):
    def step(self, action: str) -> Step:
        raise RuntimeError("the shop burnt down")


def suite(tasks: int = 4, panel: int = 6, broken: bool = False) -> Suite:
    return Suite(
        name="toy",
        factory=Broken if broken else ToyEnvironment,
        tasks=lambda split: toy_dataset(tasks),
        panel=lambda name: TaskPanel.of("toy", name, list(toy_dataset(panel))),
        categories=("even", "odd"),
        description={"tasks": tasks},
        skill_bank="webshop",
    )


def save_policy(folder: Path) -> Path:
    """The toy's policy and tokenizer as a model folder."""
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def arguments(folder: Path, policy: Path, **changed: Any) -> list[str]:
    """The command line of the smallest whole run: two epochs and a half, a checkpoint every second update."""
    settings = {
        "environment": "tests.fakes.toy_suite",
        "model_name_or_path": str(policy),
        "output_dir": str(folder),
        "panel_limit": 4,
        "tasks_per_round": 2,
        "num_generations": 2,
        "rounds": 5,
        "save_rounds": 2,
        "learning_rate": 1e-2,
        "max_prompt_length": 128,
        "max_completion_length": 8,
        "skill_tokens": 30,
        "disable_tqdm": True,
    } | changed
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]
