"""ALFWorld's text games on the real TextWorld engine, with generated games where the official ones are not at hand.

Importing this package needs none of the optional packages; playing does (``pip install "alignopsd-trl[alfworld]"``).
It registers ``ALFWorld-v0`` with Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium

from alignopsd_trl.environments.alfworld.engine.categories import CATEGORIES, TASK_TYPES
from alignopsd_trl.environments.alfworld.engine.packages import MissingPackage, logic_checksum, require, versions
from alignopsd_trl.environments.alfworld.environment import AlfWorldEnvironment, Factory
from alignopsd_trl.environments.alfworld.options import AlfWorldOptions
from alignopsd_trl.environments.alfworld.player import Explorer, Walkthrough, play
from alignopsd_trl.environments.alfworld.prompt import AlfWorldPrompt, project
from alignopsd_trl.environments.alfworld.tasks import COUNTS, SPLITS, GeneratedGames, source
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.environments.processes import ProcessBatch

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "CATEGORIES",
    "TASK_TYPES",
    "AlfWorldEnvironment",
    "AlfWorldOptions",
    "AlfWorldPrompt",
    "Explorer",
    "Factory",
    "MissingPackage",
    "ProcessBatch",
    "Walkthrough",
    "play",
    "project",
    "suite",
]

if "ALFWorld-v0" not in gymnasium.registry:
    gymnasium.register(id="ALFWorld-v0", entry_point="alignopsd_trl.environments.gym:ALFWorldGym")


def suite(**options: Any) -> Suite:
    """Makes ALFWorld with its tasks. Splits and panels: ``train``, ``valid_seen``, ``valid_unseen``.

    Args:
        options: see `AlfWorldOptions`.

    Raises:
        MissingPackage: without the extra ``alfworld``.
        FileNotFoundError: if official games are wanted and not there.
        ValueError: on an unknown option, or an unknown value of one.
    """
    require()
    chosen = AlfWorldOptions.of(options)
    wanted, where = _counts(chosen.counts), source(chosen)
    factory = Factory(chosen, {split: str(where.root(split)) for split in SPLITS})

    def rows(split: str) -> list[dict]:
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; ALFWorld has {', '.join(SPLITS)}")
        return where.rows(split, wanted[split])

    def tasks(split: str) -> Dataset:
        from datasets import Dataset

        return Dataset.from_list(rows(split))

    def panel(name: str) -> TaskPanel:
        return TaskPanel.of("alfworld", name, rows(name))

    def sketch(split: str, made: int) -> list[dict]:
        quick = isinstance(where, GeneratedGames) and split in SPLITS
        return where.sketch(split, made, wanted[split]) if quick else rows(split)

    description = where.describe() | chosen.described() | {"logic": logic_checksum(), "versions": versions()}
    return Suite("alfworld", factory, tasks, panel, CATEGORIES, description, sketch=sketch)


def _counts(counts: Mapping[str, int] | None) -> dict[str, int]:
    given = dict(counts or {})
    if set(given) - set(SPLITS) or any(count < 0 for count in given.values()):
        raise ValueError(f"counts={given} must map {', '.join(COUNTS)} to numbers of games (0: the default)")
    return dict.fromkeys(SPLITS, 0) | given
