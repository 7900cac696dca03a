"""The rows of a plan: no game is generated beyond the first ones. Needs no optional package."""

from __future__ import annotations

import pytest

from alignopsd_trl.environments.alfworld import tasks
from alignopsd_trl.environments.alfworld.engine.games import row_of
from alignopsd_trl.environments.base import UNMADE


def test_a_sketch_generates_the_first_games_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[range] = []

    def make(games: tasks.GeneratedGames, split: str, numbers: range) -> list[dict]:
        made.append(numbers)
        rows = []
        for number in numbers:
            kind = games.task_types[number % 6]
            identity = f"{kind}-Mug-None-Shelf-1/trial_{number}"
            (games.root(split) / identity).mkdir(parents=True)
            (games.root(split) / identity / "game.tw-pddl").touch()
            rows.append(row_of(split, identity, {"goal": "g", "digest": "d"}))
        return rows

    monkeypatch.setattr(tasks, "logic_checksum", lambda: "logic")
    monkeypatch.setattr(tasks, "versions", lambda: {"alfworld": "0"})
    monkeypatch.setattr(tasks.GeneratedGames, "_make", make)
    games = tasks.GeneratedGames(seed=97)
    panel = games.sketch("valid_seen", made=0)
    assert not made and len(panel) == 128 and all(UNMADE in row["task_id"] for row in panel)
    train = games.sketch("train", made=4)
    assert made == [range(4)] and len(train) == 600 == len({row["task_id"] for row in train})
    assert [UNMADE in row["task_id"] for row in train[:6]] == [False] * 4 + [True] * 2
    assert [row["task_type"] for row in train[:7]] == [*games.task_types, games.task_types[0]]
    assert {tuple(row) for row in train} == {tuple(train[0])}, "placeholders have the columns of games"
    assert len(games.rows("train", 30)) == 30 and games.sketch("train", 4, 30) == games.rows("train", 30)
    assert made == [range(4), range(4, 30)], "games that exist are no placeholders"
