"""How many commands a goal takes at least, held against games that are played."""

from __future__ import annotations

import random

import pytest
from alfworld_files import games, needs_engine, task

from alignopsd_trl.environments.alfworld import AlfWorldEnvironment, AlfWorldOptions
from alignopsd_trl.environments.alfworld.engine.distance import MOST_NEEDED, Goal, least_commands
from alignopsd_trl.environments.alfworld.engine.games import Game
from alignopsd_trl.environments.alfworld.engine.play import make_engine

needs_engine()


@pytest.mark.parametrize("game", games().values(), ids=games())
def test_no_goal_takes_fewer_commands(game: Game) -> None:
    """A bound that no command lowers by more than 1, and that is at most 1 before a win, is never above the truth."""
    engine, rng, solution = make_engine("fast"), random.Random(1), game.walkthrough
    engine.load(game.joined())
    for trial in range(6):
        moment, needed = engine.reset(), engine.least_commands()
        assert len(solution) - 4 <= needed <= min(len(solution), MOST_NEEDED)
        known = rng.randrange(len(solution)) if trial else len(solution)
        for number in range(known + 20):
            before = needed
            moment = engine.step(solution[number] if number < known else rng.choice(moment.admissible))
            needed = engine.least_commands()
            assert needed <= MOST_NEEDED and (moment.won or needed >= before - 1)
            assert not moment.won or before <= 1
            if moment.won:
                break
        assert trial or moment.won
    engine.close()


def test_goals_of_the_official_games_are_read_and_others_are_left_alone() -> None:
    found = [Goal.of(game.joined()["pddl_problem"]) for game in games().values()]
    assert all(found) and any(one.two for one in found) and any(one.light for one in found)
    assert Goal.of("(define (:goal (opened ?r)) (:metric minimize))") is None
    assert least_commands(None, {}) == 0


def test_an_episode_is_lost_when_the_turns_left_are_too_few() -> None:
    game = next(iter(games().values()))
    environment = AlfWorldEnvironment(AlfWorldOptions(max_turns=18))
    environment.reset(**task(game))
    said = [environment.step("look").lost for _ in range(18)]
    assert said[-1] and not said[0] and said == sorted(said)
    environment.reset(**task(game))
    assert not environment.step("look").lost, "a new episode has its own turns"
    environment.close()
