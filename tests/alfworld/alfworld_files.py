"""Games and transcripts: our copies, and the folder that ALIGNOPSD_ALFWORLD_FIXTURES names (by default the same)."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest

from alignopsd_trl.environments.alfworld.engine.games import Game

COPIES = Path(__file__).parents[1] / "data" / "alfworld"
FIXTURES = Path(os.environ.get("ALIGNOPSD_ALFWORLD_FIXTURES", COPIES))
TRANSCRIPTS = sorted((FIXTURES / "transcripts").glob("*.json"))
INSTALL = 'needs the extra: pip install "alignopsd-trl[alfworld]" (a C and a C++ compiler, make, cmake)'


def needs_engine() -> None:
    """Skips the calling test module unless the engine's packages are installed."""
    for package in ("textworld", "fast_downward"):
        pytest.importorskip(package, reason=INSTALL)


@lru_cache(maxsize=2)
def games(folder: Path = COPIES) -> dict[str, Game]:
    found = {}
    for path in sorted((folder / "games").glob("*.json")):
        data = json.loads(path.read_text())
        walkthrough = tuple(data["walkthrough"])
        found[data["id"]] = Game(data["id"], data["goal"], data["traj_data"], data["pddl_problem"], walkthrough)
    return found


def task(game: Game) -> dict:
    return {"task_id": game.task_id, "game": game.joined()}
