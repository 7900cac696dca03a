from __future__ import annotations

import json

import pytest
from alfworld_files import FIXTURES, TRANSCRIPTS, games, needs_engine, task

from alignopsd_trl.environments.alfworld import AlfWorldEnvironment, AlfWorldOptions

needs_engine()


def test_there_are_transcripts():
    assert TRANSCRIPTS, f"no transcripts/*.json under {FIXTURES}"


@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path, engine):
    transcript = json.loads(path.read_text())
    environment = AlfWorldEnvironment(AlfWorldOptions(engine=engine))
    opening = environment.reset(**task(games(FIXTURES)[transcript["game_id"]]))
    initial = transcript["initial"]
    assert opening.observation == initial["observation"]
    assert list(opening.admissible) == initial["admissible_commands"]
    assert initial["won"] is False
    assert (opening.category, opening.task_key) == (transcript["category"], transcript["task_type"])
    for number, expected in enumerate(transcript["steps"], start=1):
        step = environment.step(expected["action"])
        found = {
            "action": expected["action"],
            "observation": step.observation,
            "score": step.score,
            "reward": step.reward,
            "done": step.done or number >= transcript["max_episode_steps"],  # the limit is the caller's
            "won": step.won,
            "admissible_commands": list(step.admissible),
        }
        assert found == expected, f"{path.name}, step {number}"
        assert step.info["game_id"] == transcript["game_id"] and step.info["category"] == transcript["category"]
    environment.close()


@pytest.mark.parametrize("game", games(FIXTURES).values(), ids=lambda game: game.task_id)
def test_fixture_game_is_won_by_its_walkthrough(game):
    environment = AlfWorldEnvironment()
    seen = environment.reset(**task(game))
    for number, command in enumerate(game.walkthrough, start=1):
        assert command in seen.admissible
        seen = environment.step(command)
        last = number == len(game.walkthrough)
        assert (seen.won, seen.done, seen.reward) == (last, last, 10.0 * last)
    environment.close()
