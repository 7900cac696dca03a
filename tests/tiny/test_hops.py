"""Questions of several hops: what they are made of, that each holds one trap, and a policy that reads its skill."""

from __future__ import annotations

import random

import pytest
from fakes.episodes import walk

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.searchqa.engine.observations import read_titles
from alignopsd_trl.environments.searchqa.hop_reader import play


@pytest.fixture(scope="module")
def world() -> Suite:
    return load("searchqa_hops")


def test_the_shipped_questions_are_these(world: Suite):
    assert world.panel("test").checksum == "c372bbb2b9c0c9e6"
    assert world.panel("train").checksum == "cc12b156aa2d7348"


def test_a_golden_transcript(world: Suite):
    environment, row = world.factory(), world.panel("test").rows[2]
    opening = environment.reset(**row)
    assert (opening.task_key, opening.category) == ("namesake", "namesake")
    assert opening.observation == "What is the currency of the country of the capital of the country Gardale?"
    said = {
        "Gardale": "Gardale is a firm in the town Stosk with the product kites.",
        "Gardale country": "Gardale is a country with the capital Raszor and the currency lumen.",
        "Raszor": "Raszor is a town in the country Jaszor on the river Pimheim.",
        "Jaszor": "Jaszor is a country with the capital Morwick and the currency quill.",
    }
    reached = []
    for query, text in said.items():
        step = environment.step(f"<search>{query}</search>")
        assert list(read_titles(step.observation).values()) == [text] and not step.done
        reached.append(step.milestone)
    assert reached == [
        None,  # a namesake
        "capital of the country Gardale",
        "country of the town Raszor",
        "currency of the country Jaszor",
    ]
    step = environment.step("<answer>quill</answer>")
    assert step.done and step.won and step.reward == step.score == 1.0 and step.milestone == "right answer"


def test_a_fact_is_found_once_and_in_the_order_of_the_question(world: Suite):
    environment = world.factory()
    environment.reset(**world.panel("test").rows[2])
    queries = ("Jaszor", "Gardale country", "Gardale country", "Raszor", "Jaszor")
    found = [environment.step(f"<search>{query}</search>").milestone for query in queries]
    assert [bool(one) for one in found] == [False, True, False, True, True]
    assert environment.step("<answer>lumen</answer>").milestone is None
    environment.reset("Who was first?", ["nobody"])
    assert environment.step("<search>Jaszor</search>").milestone is None, "a question of another form has no facts"


def test_a_wrong_answer_ends_the_question_and_the_limit_is_eight_turns(world: Suite):
    environment = world.factory()
    environment.reset(**world.panel("test").rows[2])
    step = environment.step("<answer>lumen</answer>")
    assert step.done and not step.won and step.reward == 0.0
    assert environment.max_turns == 8


@pytest.mark.parametrize(("skill", "least", "most"), [("", 0.2, 0.6), ("Go on.", 0.9, 1.0)])
def test_the_player_of_the_package_is_careful_under_a_skill_alone(world: Suite, skill: str, least: float, most: float):
    environment, draw = world.factory(), random.Random(0)
    rows = world.panel("test").rows
    won = [walk(environment, row, lambda view: play(view, environment, skill, draw))[2] for row in rows]
    assert least < sum(won) / len(rows) < most


def test_its_thoughts_copy_what_decides_from_a_short_prompt():
    short = load("searchqa_hops", template="short")
    environment, draw = short.factory(), random.Random(0)
    views, responses, won = walk(
        environment, short.panel("test").rows[2], lambda view: play(view, environment, "a skill", draw)
    )
    assert won and responses[0].startswith("<think>country Gardale; left capital, country, currency</think>")
    assert responses[1] == "<think>firm, not country</think>\n<search>Gardale country</search>"
    question, passage = views[0].task_text, "Gardale is a firm in the town Stosk with the product kites."
    assert environment.prompt.render(views[0]) == [
        {"role": "system", "content": ""},
        {"role": "user", "content": question},
    ]
    assert environment.prompt.render(views[1], "a skill") == [
        {"role": "system", "content": "a skill"},
        {"role": "user", "content": f"{question}\nGardale\n{passage}"},
    ]
    assert environment.prompt.reply(views[1]) == passage  # ty: ignore[missing-attribute]
