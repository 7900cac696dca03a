"""ALFWorld's text games on the real TextWorld engine, with games of our own where the official ones are not at hand.

Importing this package needs none of the optional packages; playing does (``pip install "alignopsd-trl[alfworld]"``).
It registers ``ALFWorld-v0`` with Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium

from environments.alfworld.categories import CATEGORIES, TASK_TYPES, format_rates, parse_task_type, success_rates
from environments.alfworld.environment import AlfWorldEnvironment, Factory, Settings
from environments.alfworld.experts import Explorer, Walkthrough, play
from environments.alfworld.generator import THINGS
from environments.alfworld.packages import MissingPackage, logic_checksum, require, versions
from environments.alfworld.pool import ProcessBatch
from environments.alfworld.prompt import AlfWorldPrompt, project
from environments.alfworld.rooms import SIZE
from environments.alfworld.splits import COUNTS, SPLITS, source
from environments.base import Suite
from environments.panel import TaskPanel

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "CATEGORIES",
    "TASK_TYPES",
    "AlfWorldEnvironment",
    "AlfWorldPrompt",
    "Explorer",
    "Factory",
    "MissingPackage",
    "ProcessBatch",
    "Settings",
    "Walkthrough",
    "format_rates",
    "play",
    "project",
    "success_rates",
    "suite",
]

if "ALFWorld-v0" not in gymnasium.registry:
    gymnasium.register(id="ALFWorld-v0", entry_point="environments.alfworld.gym:ALFWorldGym")


def suite(
    games: str = "generated",
    folder: str | Path | None = None,
    counts: Mapping[str, int] | None = None,
    task_types: Sequence[str] | None = None,
    seed: int = 0,
    engine: str = "fast",
    validity: str = "authors",
    max_steps: int = 50,
    history_length: int = 2,
    template: str = "paper",
    room_size: Sequence[int] = SIZE,
    room_things: Sequence[int] = THINGS,
) -> Suite:
    """ALFWorld with its tasks. Splits and panels: ``train``, ``valid_seen``, ``valid_unseen``.

    Args:
        games (`str`, *optional*, defaults to `"generated"`): ``generated`` makes and keeps games of our own;
            ``official`` plays those of ``alfworld-download``.
        folder (*optional*): of the official splits, by default ``$ALFWORLD_DATA/json_2.1.1``.
        counts (*optional*): split -> number of games, its first ones. Default: all official games; 600, 120 and 120
            generated ones.
        task_types (*optional*): names, categories or numbers of the wanted types, by default all six.
        seed (`int`, *optional*, defaults to 0): of generated splits; another seed makes other games.
        engine (`str`, *optional*, defaults to `"fast"`): ``fast``, or ``plain`` for TextWorld's own text layer.
        validity (`str`, *optional*, defaults to `"authors"`): ``authors`` or ``admissible``.
        max_steps (`int`, *optional*, defaults to 50): commands in an episode.
        history_length (`int`, *optional*, defaults to 2): turns shown in a prompt.
        template (`str`, *optional*, defaults to `"paper"`): of the prompt; ``tiny`` is short.
        room_size (*optional*, defaults to `(5, 20)`): fewest and most receptacles in a generated room. Rooms have at
            least what their kind needs: four to eight.
        room_things (*optional*, defaults to `(6, 18)`): fewest and most things in a generated room, beside those of the
            task.

    Raises:
        MissingPackage: without the extra ``alfworld``.
        FileNotFoundError: if official games are wanted and not there.
        ValueError: on an unknown value of an argument.
    """
    require()
    kinds = [parse_task_type(str(kind)) for kind in task_types] if task_types else list(TASK_TYPES.values())
    wanted = _counts(counts)
    ordered = [kind for kind in TASK_TYPES.values() if kind in kinds]
    where = source(games, folder, seed, ordered, tuple(room_size), tuple(room_things))
    roots = {split: str(where.root(split)) for split in SPLITS}
    settings = Settings(roots, engine, max_steps, history_length, validity, template=template)

    def rows(split: str) -> list[dict]:
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; ALFWorld has {', '.join(SPLITS)}")
        return where.rows(split, wanted[split])

    def tasks(split: str) -> Dataset:
        from datasets import Dataset

        return Dataset.from_list(rows(split))

    def panel(name: str) -> TaskPanel:
        return TaskPanel.of("alfworld", name, rows(name))

    description = where.describe() | {
        "engine": engine,
        "validity": validity,
        "max_steps": max_steps,
        "history_length": history_length,
        "template": template,
        "logic": logic_checksum(),
        "versions": versions(),
    }
    return Suite("alfworld", Factory(settings), tasks, panel, CATEGORIES, description)


def _counts(counts: Mapping[str, int] | None) -> dict[str, int]:
    unknown = sorted(set(counts or {}) - set(SPLITS))
    if unknown or any(count < 0 for count in (counts or {}).values()):
        raise ValueError(f"counts={dict(counts)} must map {', '.join(COUNTS)} to numbers of games (0: the default)")
    return dict.fromkeys(SPLITS, 0) | dict(counts or {})
