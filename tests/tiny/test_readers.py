"""Search-QA at its smallest: what a search shows, and what the suite says of it."""

from __future__ import annotations

import pytest

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load


@pytest.fixture(scope="module")
def world() -> Suite:
    return load("searchqa_tiny")


def test_a_search_shows_the_first_sentences_of_one_passage(world: Suite):
    environment = world.factory()
    environment.reset(**world.panel("test").rows[0])
    shown = environment.step("<search>lidda eskerry</search>").observation
    assert shown.startswith('<information>Doc 1(Title: "Lidda Eskerry") ')
    assert "Doc 2" not in shown
    assert shown.count(".") == 3


def test_the_suite_says_what_it_shows(world: Suite):
    assert world.description["retrieval"]["sentences"] == 3
    assert world.description["top_k"] == 1
    assert world.description["prompt"].startswith("searchqa-tiny-")
