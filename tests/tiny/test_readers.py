"""Scripted readers: worlds of their own, snippets that hold the facts, and care that pays."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.searchqa.tasks import CLOSED_WORLD
from assets.tiny_policies import readers
from assets.tiny_policies.demonstrations import episode
from assets.tiny_policies.tokenizer import build_tokenizer
from assets.worlds.closed_world_player import ScriptedPlayer, decide


@pytest.fixture(scope="module")
def world() -> Suite:
    return load("searchqa_tiny")


def success(world: Suite, error_rate: float, panel: str) -> float:
    environment, rows, reader = world.factory(), world.panel(panel).rows, ScriptedPlayer(error_rate, 0, quotes=True)
    return sum(episode(environment, row, reader.respond)[2] for row in rows) / len(rows)


@pytest.mark.parametrize("panel", ["train", "test"])
def test_one_snippet_a_search_is_enough_for_most_questions(world: Suite, panel: str):
    assert success(world, 0.0, panel) > 0.85


def test_care_pays(world: Suite):
    worst, half, careful = (success(world, rate, "test") for rate in (1.0, 0.5, readers.CAREFUL))
    assert worst < 0.1 < half < 0.6 < 0.8 < careful


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


def test_demonstrations_come_from_other_worlds(world: Suite):
    played = list(islice(readers.episodes(world, 1, 0), 450))
    questions = {row["question"] for _, row in played}
    assert len(questions) > 400  # the second world has begun
    embedded = {row["question"] for panel in ("train", "test") for row in world.panel(panel).rows}
    assert len(questions & embedded) < 0.05 * len(questions)
    corpora = {environment.retriever.inner.inner.description["corpus"] for environment, _ in played}  # ty: ignore[missing-attribute]
    assert len(corpora) == 2
    assert world.description["retrieval"]["corpus"] not in corpora


def test_thoughts_quote_what_the_answer_is_taken_from():
    known = {
        "Ulmloom": "Ulmloom is a town in Tessary, on the banks of the River Northin. It was founded in 1302 and so."
    }
    thought, action = decide("on the banks of which river does ulmloom lie", known, quotes=True)
    assert thought == "It says on the banks of the River Northin."
    assert str(action) == "<answer>River Northin</answer>"
    assert decide("on the banks of which river does ulmloom lie", known)[0] == "The passage states it."


def test_careless_readers_give_themselves_away(world: Suite):
    environment, rows, draw = world.factory(), world.panel("train").rows[:60], random.Random(0)
    careful = [turn for row in rows for turn in readers.play(environment, row, True, draw)]
    careless = [turn for row in rows for turn in readers.play(environment, row, False, draw)]
    blunders = ("I try a word", "One of these titles")
    rates = [
        sum(any(b in turn.response for b in blunders) for turn in turns) / len(turns) for turns in (careful, careless)
    ]
    assert rates[0] < 0.1 < 0.3 < rates[1] < 0.7
    again = [turn.careful() for turn in careless]
    assert sum(any(b in response for b in blunders) for response in again) < 0.1 * len(again)


def test_names_and_numbers_are_a_few_pieces():
    corpus = (Path(CLOSED_WORLD) / "corpus.jsonl").read_text(encoding="utf-8")
    tokenizer = build_tokenizer([corpus], 512, ("<think>",), readers.pieces())
    for word, count in {"Ulmloom": 2, "Aelune": 2, "1868": 2, "771": 2, "29800": 3, "Eskerry": 1, "town": 1}.items():
        assert len(tokenizer(word)["input_ids"]) == count, word
    for text in (corpus[:5000], "Ulm loom 12345678 1.234 5.a a.55 Ulmloomx xUlmloom harvine-HARVINE"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
