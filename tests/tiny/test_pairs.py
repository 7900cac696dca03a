"""Games that ask for two things: what they are made of, that each holds one trap, and a policy that reads its skill."""

from __future__ import annotations

import pytest
from fakes.episodes import walk

from alignopsd_trl.environments.alfworld.house import NOTHING, House
from alignopsd_trl.environments.alfworld.pairs import KINDS, LOOKALIKES, SIZES, PairGoal
from alignopsd_trl.environments.base import Opening, Suite, TextEnvironment
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.panel import SPLITS

ROOM = ["desk 1: mug 1, cup 2", "drawer 1 (closed): cup 1", "shelf 1:", "shelf 2:", "sinkbasin 1:"]


@pytest.fixture(scope="module")
def pairs() -> Suite:
    return load("alfworld_pairs")


@pytest.fixture
def game(pairs: Suite) -> TextEnvironment:
    """Two clean cups to put in a shelf, of which there are two; a mug lies beside one, the other is in a drawer."""
    environment = pairs.factory()
    environment.reset(task="put two clean cup in shelf.", places=ROOM, category="apart")
    return environment


def play(environment: TextEnvironment, *commands: str) -> list:
    return [environment.step(command) for command in commands]


def fetch(thing: str, place: str, shelf: str, clean: bool = True) -> list[str]:
    opening = [f"open {place}"] if place.startswith("drawer") else []
    wash = ["go to sinkbasin 1", f"clean {thing} with sinkbasin 1"] if clean else []
    brought = [f"go to {shelf}", f"move {thing} to {shelf}"]
    return [f"go to {place}", *opening, f"take {thing} from {place}", *wash, *brought]


def test_right_deliveries_are_milestones(game: TextEnvironment):
    steps = play(game, *fetch("mug 1", "desk 1", "shelf 1"), *fetch("cup 2", "desk 1", "shelf 1"))
    assert [step.milestone for step in steps if step.milestone] == ["1 delivered right"], "the first is no cup"
    game.reset(task="put two clean cup in shelf.", places=ROOM, category="apart")
    steps = play(game, *fetch("cup 2", "desk 1", "shelf 1"), *fetch("cup 1", "drawer 1", "shelf 1"))
    assert [step.milestone for step in steps if step.milestone] == ["1 delivered right", "2 delivered right"]
    assert steps[-1].won


def test_games_are_the_same_everywhere(pairs: Suite):
    assert pairs.panel("test").checksum == "8c08f6381145e5e9"
    assert pairs.panel("train").checksum == "1b373323024b8314"
    assert load("alfworld_pairs", seed=1).panel("test").checksum != pairs.panel("test").checksum


def test_splits_share_no_game_and_kinds_are_spread_evenly(pairs: Suite):
    games = {split: {(row["task"], *sorted(row["places"])) for row in pairs.tasks(split)} for split in SPLITS}
    assert not games["train"] & games["test"]
    for split in SPLITS:
        kinds = pairs.tasks(split)["category"]
        assert len(games[split]) == SIZES[split]
        assert [kinds.count(kind) for kind in KINDS] == [SIZES[split] / len(KINDS)] * len(KINDS)


def test_every_game_holds_its_trap_and_no_other(pairs: Suite):
    for row in pairs.tasks("test"):
        goal, house = PairGoal.read(row["task"]), House.read(row["places"])
        things = [thing for place in house.places.values() for thing in place.things]
        assert sum(thing.startswith(f"{goal.thing} ") for thing in things) == 2
        shut = any(place.closed and place.things for place in house.places.values())
        ends = sum(name.startswith(f"{goal.place} ") for name in house.places)
        alike = any(thing.startswith(f"{LOOKALIKES[goal.thing]} ") for thing in things)
        traps = {"untreated": bool(goal.state), "lookalike": alike, "closed": shut, "apart": ends == 2}
        assert [kind for kind, there in traps.items() if there] == [row["category"]]


def test_a_golden_transcript(pairs: Suite):
    environment = pairs.factory()
    opening = environment.reset(task="put two clean cup in shelf.", places=ROOM, category="untreated")
    assert isinstance(opening, Opening)
    assert (opening.task_text, opening.task_key, opening.category) == (
        "put two clean cup in shelf.",
        "untreated",
        "untreated",
    )
    said = {
        "go to drawer 1": "The drawer 1 is closed.",
        "take cup 2 from desk 1": f"{NOTHING} The drawer 1 is closed.",
        "open drawer 1": "You open the drawer 1. In the drawer 1, you see a cup 1.",
        "take cup 1 from drawer 1": "You pick up the cup 1 from the drawer 1.",
        "go to sinkbasin 1": "On the sinkbasin 1, you see nothing.",
        "clean cup 1 with sinkbasin 1": "You clean the cup 1 using the sinkbasin 1.",
        "go to shelf 2": "On the shelf 2, you see nothing.",
        "move cup 1 to shelf 2": "You move the cup 1 to the shelf 2.",
        "go to desk 1": "On the desk 1, you see a mug 1, a cup 2.",
    }
    for command, text in said.items():
        step = environment.step(command)
        assert step.observation == text and not step.done and step.reward == 0.0
    assert "take mug 1 from desk 1" in step.admissible and "open drawer 1" not in step.admissible
    step = play(environment, *fetch("cup 2", "desk 1", "shelf 2")[1:])[-1]
    assert step.done and step.won and step.reward == step.score == 1.0
    assert environment.step("go to desk 1").observation.startswith(NOTHING)


@pytest.mark.parametrize(
    ("second", "score"),
    [
        (fetch("cup 2", "desk 1", "shelf 1"), 1.0),
        (fetch("cup 2", "desk 1", "shelf 2"), 0.5),
        (fetch("cup 2", "desk 1", "shelf 1", clean=False), 0.5),
        (fetch("mug 1", "desk 1", "shelf 1"), 0.5),
    ],
)
def test_what_the_second_delivery_is_worth(game: TextEnvironment, second: list[str], score: float):
    first = play(game, *fetch("cup 1", "drawer 1", "shelf 1"))[-1]
    assert not first.done and first.score == 0.5
    assert "take cup 1 from shelf 1" not in first.admissible  # what is delivered stays
    last = play(game, *second)[-1]
    assert last.done and last.score == score and last.won == (score == 1.0) and last.reward == float(last.won)


def test_a_thing_that_was_put_elsewhere_is_not_delivered(game: TextEnvironment):
    step = play(game, "go to desk 1", "take mug 1 from desk 1", "move mug 1 to desk 1")[-1]
    assert step.metrics["delivered"] == 0 and "take mug 1 from desk 1" in step.admissible


@pytest.mark.parametrize(
    ("row", "said"), [({"task": "put a cup in shelf."}, "put two clean cup"), ({"places": ["desk"]}, "desk 1: mug 1")]
)
def test_rows_of_another_form_are_refused(pairs: Suite, row: dict, said: str):
    with pytest.raises(ValueError, match=said):
        pairs.factory().reset(**{"task": "put two cup in shelf.", "places": ROOM} | row)


def solution(task: str, places: list[str]) -> list[str]:
    """Commands that win a game: each thing of the kind is fetched, treated and brought to the same place."""
    goal, house = PairGoal.read(task), House.read(places)
    end = next(name for name in house.places if name.startswith(f"{goal.place} "))
    tool, verb = f"{goal.tool} 1", {"clean": "clean", "hot": "heat", "cool": "cool"}.get(goal.state)
    commands = []
    for name, place in house.places.items():
        for thing in [one for one in place.things if one.startswith(f"{goal.thing} ")]:
            opening = [f"open {name}"] if place.closed and f"open {name}" not in commands else []
            treated = [f"go to {tool}", f"{verb} {thing} with {tool}"] if verb else []
            taken = [f"go to {name}", *opening, f"take {thing} from {name}"]
            commands += [*taken, *treated, f"go to {end}", f"move {thing} to {end}"]
    return commands


def test_every_game_can_be_won(pairs: Suite):
    environment = pairs.factory()
    for row in pairs.panel("test").rows:
        environment.reset(**row)
        commands = solution(row["task"], row["places"])
        assert play(environment, *commands)[-1].won and 8 <= len(commands) <= 13


def test_what_a_prompt_shows(pairs: Suite):
    environment, row = pairs.factory(), pairs.panel("test").rows[0]
    commands = iter(solution(row["task"], row["places"]))
    views, _, _ = walk(environment, row, lambda view: f"<think>so</think><action>{next(commands)}</action>")
    shown = environment.prompt.render(views[-1], "Guidance.")
    assert shown.startswith(f"Task: {row['task']}\nGuidance.\n> go to ")
    assert all(f"> {record.action}\n" in shown for record in views[-1].history) and len(views[-1].history) > 9
    assert shown.count("You pick up") <= 1 and "Now: " in shown and "\nPlaces: " in shown
