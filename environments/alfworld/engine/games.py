"""Games on disk: the official folder layout, one loader for official and generated games, and the index of a split.

A game is a folder ``<split>/<type>-<object>-<movable or None>-<receptacle or lamp>-<scene>/<trial>`` with
``traj_data.json``, ``initial_state.pddl`` and ``game.tw-pddl``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.alfworld.engine.categories import CATEGORY_OF, task_type_of
from alignopsd_trl.environments.alfworld.engine.packages import logic_files
from alignopsd_trl.environments.cache import cache_folder, write_atomically

FORMAT = 1
_KEYS = ("pddl_domain", "grammar", "pddl_problem")
_GOAL = re.compile(r'Your task is to: ([^"]*?)\.?"')


@dataclass(frozen=True)
class Game:
    """A game without the two logic files, which are the same for all games and are added at load time.

    Args:
        task_id: ``<task folder>/<trial>``.
        goal: the task sentence, without a final point.
        traj_data: content of ``traj_data.json``.
        pddl_problem: content of ``initial_state.pddl``.
        walkthrough: commands that win the game.
    """

    task_id: str
    goal: str
    traj_data: Mapping[str, Any]
    pddl_problem: str
    walkthrough: tuple[str, ...]

    def joined(self) -> dict[str, Any]:
        """Returns the five keys of a ``game.tw-pddl`` file."""
        domain, grammar = logic_files()
        return {
            "pddl_domain": domain,
            "grammar": grammar.replace("UNKNOWN GOAL", self.goal),
            "pddl_problem": self.pddl_problem,
            "solvable": True,
            "walkthrough": list(self.walkthrough),
        }

    def write(self, split: Path) -> Path:
        """Writes the game's folder under a split's folder, the game file last, so that a folder with one is whole."""
        folder = split / self.task_id
        write_atomically(folder / "traj_data.json", _json(self.traj_data))
        write_atomically(folder / "initial_state.pddl", self.pddl_problem.encode())
        write_atomically(folder / "game.tw-pddl", _json(self.joined()))
        return folder / "game.tw-pddl"

    def row(self, split: str) -> dict[str, Any]:
        """Returns the game's dataset row."""
        return row_of(split, self.task_id, {"goal": self.goal, "digest": _digest(self.goal, self.pddl_problem)})


def read_game(folder: Path) -> dict[str, Any]:
    """Reads a ``game.tw-pddl`` file as a dictionary.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not JSON or lacks what play needs; the message names the file.
    """
    path = folder / "game.tw-pddl"
    try:
        game = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such game; check the split's folder and the task_id") from None
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file ({error}); fetch or generate the game again") from error
    missing = [key for key in _KEYS if not isinstance(game, dict) or not isinstance(game.get(key), str)]
    if missing:
        raise ValueError(f"{path}: field {missing[0]!r} must be a text; fetch or generate the game again")
    return game


def list_games(folder: Path, split: str, task_types: Collection[str] | None = None, count: int = 0) -> list[dict]:
    """Returns rows of the playable games under a split's folder, sorted by identity.

    Playable: the path below ``folder`` holds neither ``movable`` nor ``Sliced``, ``traj_data.json`` names a wanted
    task type, and ``game.tw-pddl`` exists and says that it is solvable. Results are kept in an index, and only changed
    files are read again.

    Args:
        folder: of the split.
        split: its name, for the rows.
        task_types: wanted ones, all six by default.
        count: the number of games, the first ones; 0 for all.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if a file is broken (the message names it) or no game is playable.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; official games come with `alfworld-download`")
    wanted = set(CATEGORY_OF if task_types is None else task_types)
    rows = [
        row_of(split, identity, entry)
        for identity, entry in _index(folder).items()
        if entry["solvable"] and entry["task_type"] in wanted
    ]
    if not rows:
        raise ValueError(f"{folder}: no playable game of type {', '.join(sorted(wanted))}")
    return rows[:count] if count > 0 else rows


def _index(folder: Path) -> dict[str, dict[str, Any]]:
    key = hashlib.sha256(f"{FORMAT}\0{folder.resolve()}".encode()).hexdigest()[:24]
    path = cache_folder("alfworld") / "index" / f"{key}.json"
    try:
        known = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # an index that is not there, or not whole, is made anew
        known = {}
    found = {}
    for identity, stamp in sorted(_candidates(folder)):
        entry = known.get(identity)
        found[identity] = entry if entry and entry["stamp"] == stamp else _read_entry(folder / identity, stamp)
    if found != known:
        write_atomically(path, _json(found))
    return found


def _candidates(folder: Path) -> Iterator[tuple[str, list[int]]]:
    for place, _, files in os.walk(folder):
        identity = Path(place).relative_to(folder).as_posix()
        if "movable" in identity or "Sliced" in identity or not {"traj_data.json", "game.tw-pddl"} <= set(files):
            continue
        stats = [os.stat(os.path.join(place, name)) for name in ("traj_data.json", "game.tw-pddl")]
        yield identity, [number for stat in stats for number in (stat.st_mtime_ns, stat.st_size)]


def _read_entry(folder: Path, stamp: list[int]) -> dict[str, Any]:
    path = folder / "traj_data.json"
    try:
        kind = json.loads(path.read_bytes())["task_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: field 'task_type' can't be read ({error}); fetch the file again") from error
    game = read_game(folder)
    found = _GOAL.search(game["grammar"])
    goal = found[1] if found else ""
    return {
        "stamp": stamp,
        "task_type": kind,
        "solvable": game.get("solvable") is True,
        "goal": goal,
        "digest": _digest(goal, game["pddl_problem"]),
    }


def row_of(split: str, identity: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dataset row of a game with a goal and a digest."""
    kind = task_type_of(identity)
    return {
        "task_id": identity,
        "split": split,
        "category": CATEGORY_OF[kind],
        "task_type": kind,
        "goal": entry["goal"],
        "digest": entry["digest"],
    }


def _digest(goal: str, problem: str) -> str:
    return hashlib.sha256(f"{goal}\0{problem}".encode()).hexdigest()[:16]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
