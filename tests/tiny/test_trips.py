"""Trips: what they are made of, that each holds one trap, and a policy that reads its skill."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from fakes.episodes import walk

from alignopsd_trl.environments.base import Suite, TextEnvironment, View
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.webshop.trips import KINDS

WON = """search[compact plug play cable], click[3940615347], click[blue], click[short], click[buy now],
search[slim fit wool coat], click[7836846730], click[green], click[buy now],
search[kosher low carb cheese], click[1085116215], click[vanilla], click[dozen], click[buy now]"""
"""The right purchases of the first trip of the test split."""


def right(environment: TextEnvironment, row: Mapping[str, Any]) -> tuple[list[View], list[str], bool]:
    actions = iter(re.split(r",\s", WON))
    return walk(environment, row, lambda view: f"<think>so</think><action>{next(actions)}</action>")


def milestones(environment: TextEnvironment, row: Mapping[str, Any], responses: list[str]) -> list[str | None]:
    environment.reset(**row)
    return [environment.step(environment.project(one).action).milestone for one in responses]


@pytest.fixture(scope="module")
def trips() -> Suite:
    return load("webshop_trips")


def test_a_trip_is_won_when_every_purchase_is_right(trips: Suite):
    environment, row = trips.factory(), trips.tasks("test")[0]
    views, responses, won = right(environment, row)
    assert won and 12 <= len(views) <= environment.max_turns
    assert sum("buy now" in one for one in responses) == len(row["goal_indices"]) == 3
    for number, text in enumerate(row["instruction"].split("; ")):
        assert any(f"'Request {number + 1} of 3' [SEP] '{text}'" in view.observation for view in views)


def test_a_wrong_purchase_loses_the_trip_and_keeps_its_share_of_the_score(trips: Suite):
    environment, row = trips.factory(), trips.tasks("test")[0]
    environment.reset(**row)
    steps = []
    for index, kind in enumerate(("serum", "shampoo", "table")):
        steps.append(environment.step(f"search[{kind}]"))
        product = next(action for action in steps[-1].admissible if action[6:-1].isdigit())
        environment.step(product)
        steps.append(environment.step("click[buy now]"))
        assert steps[-1].done == (index == 2)
    assert not steps[-1].won and steps[-1].reward == 0.0 and 0.0 < steps[-1].score < 1.0
    assert steps[-1].metrics["requests_right"] < 3
    assert all("breakdown" in step.info for step in steps[1::2])


def test_right_purchases_are_milestones(trips: Suite):
    environment, row = trips.factory(), trips.tasks("test")[0]
    _, responses, won = right(environment, row)
    found = milestones(environment, row, responses)
    assert won and [one for one in found if one] == [f"request {number} served" for number in (1, 2, 3)]
    assert all(("buy now" in text) == bool(one) for text, one in zip(responses, found, strict=True))
    wrong = ["<action>search[serum]</action>", "<action>click[buy now]</action>"]
    assert not any(milestones(environment, row, wrong))


def test_the_same_words_give_the_same_trip(trips: Suite):
    again = load("webshop_trips")
    assert again.panel("test").checksum == trips.panel("test").checksum
    assert load("webshop_trips", requests=1).panel("test").checksum != trips.panel("test").checksum


def test_training_and_test_share_no_request_and_kinds_are_spread_evenly(trips: Suite):
    texts = {split: {text for row in trips.tasks(split) for text in row["instruction"].split("; ")} for split in SPLITS}
    assert not texts["train"] & texts["test"]
    for split in SPLITS:
        kinds = trips.tasks(split)["category"]
        assert all(kinds.count(kind) == len(kinds) // 4 for kind in KINDS)


SPLITS = ("train", "test")
