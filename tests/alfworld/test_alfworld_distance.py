"""How many commands a goal takes at least, held against games that are played."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from alfworld_files import games, needs_engine, task

from alignopsd_trl.environments.alfworld import AlfWorldEnvironment, AlfWorldOptions
from alignopsd_trl.environments.alfworld.engine.distance import MOST_NEEDED, PlannerGoal, least_commands
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
    found = [PlannerGoal.of(game.joined()["pddl_problem"]) for game in games().values()]
    assert all(found) and any(one.two for one in found) and any(one.light for one in found)
    assert PlannerGoal.of("(define (:goal (opened ?r)) (:metric minimize))") is None
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


def milestones(environment: AlfWorldEnvironment, game: Game, commands: Sequence[str]) -> list[str]:
    environment.reset(**task(game))
    return [step.milestone for command in commands if (step := environment.step(command)).milestone]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Ladle", ["1 ladle taken", "1 ladle in cabinet"]),
        ("Watch", ["1 watch taken", "desklamp on"]),
        ("clean_then_place_in_recep-Apple", ["1 apple taken", "apple clean", "1 apple in garbagecan"]),
        ("Plate-None-Sink", ["1 plate taken", "plate hot", "1 plate in sinkbasin"]),
        ("Pan", ["1 pan taken", "pan cool", "1 pan in stoveburner"]),
        ("Cloth", ["1 cloth taken", "1 cloth in drawer", "2 cloth taken", "2 cloth in drawer"]),
    ],
)
def test_parts_of_the_goal_are_milestones_once(name: str, wanted: list[str]) -> None:
    game, environment = next(one for one in games().values() if name in one.task_id), AlfWorldEnvironment()
    assert milestones(environment, game, game.walkthrough) == wanted
    take = next(command for command in game.walkthrough if command.startswith("take "))
    at = game.walkthrough.index(take)
    back = take.replace("take ", "move ").replace(" from ", " to ")
    again = [*game.walkthrough[: at + 1], back, take, "look", *game.walkthrough[at + 1 :]]
    assert milestones(environment, game, again) == wanted
    environment.close()
