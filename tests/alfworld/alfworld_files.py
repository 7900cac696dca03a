"""The fixtures' games and transcripts, from the folder that ALIGNOPSD_ALFWORLD_FIXTURES names."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest

from environments.alfworld.games import Game

FIXTURES = Path(os.environ.get("ALIGNOPSD_ALFWORLD_FIXTURES", Path(__file__).parents[1] / "data" / "alfworld"))
TRANSCRIPTS = sorted((FIXTURES / "transcripts").glob("*.json"))
INSTALL = 'needs the extra: pip install "alignopsd-trl[alfworld]" (a C and a C++ compiler, make, cmake)'


def needs_engine() -> None:
    """Skips the calling test module unless the engine's packages are installed."""
    for package in ("textworld", "fast_downward"):
        pytest.importorskip(package, reason=INSTALL)


@lru_cache(maxsize=1)
def games() -> dict[str, Game]:
    found = {}
    for path in sorted((FIXTURES / "games").glob("*.json")):
        data = json.loads(path.read_text())
        walkthrough = tuple(data["walkthrough"])
        found[data["id"]] = Game(data["id"], data["goal"], data["traj_data"], data["pddl_problem"], walkthrough)
    return found


def task(game: Game) -> dict:
    return {"task_id": game.task_id, "game": game.joined()}
