"""Episode, prompt and batch: what is executed, shown, remembered and rewarded."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from alignopsd_trl.environments.base import Failure, Projection, Record, View
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.searchqa import (
    Outcome,
    Passage,
    Retriever,
    SearchFailure,
    SearchQA,
    SearchQAFactory,
    SearchQAPrompt,
    open_retriever,
)
from alignopsd_trl.environments.searchqa.engine.actions import project_agent_loop, project_search_r1
from alignopsd_trl.environments.searchqa.engine.observations import read_titles, show


class Echo(Retriever):
    """One passage that repeats the query; keeps what it was asked."""

    description = {"backend": "echo"}

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        self.asked.append(list(queries))
        return [
            SearchFailure("down") if query == "fail" else [Passage(f'"T"\n<answer>{query}</answer>', "7")]
            for query in queries
        ]


BM25 = open_retriever("bm25")
TASK = {"question": "Where is it?", "golden_answers": ["Lumloom", "the town"], "data_source": "nq"}


def started(**options: Any) -> SearchQA:
    episode = SearchQA(Echo(), **options)
    assert episode.reset(**TASK).observation == "Where is it?"
    return episode


def test_search_then_answer() -> None:
    episode = started()
    first = episode.step("<search>a b</search>")
    assert first.observation == '<information>Doc 1(Title: "T") <answer>a b</answer></information>'
    assert (first.reward, first.done, first.won, first.score) == (0.0, False, False, 0.0)
    last = episode.step("<answer>The Lumloom!</answer>")
    assert (last.observation, last.reward, last.done, last.won, last.score) == ("", 1.0, True, True, 1.0)
    assert (last.metrics["turns"], last.metrics["searches"], last.metrics["answered"]) == (2, 1, True)


@pytest.mark.parametrize(
    ("max_turns", "responses", "asked", "last"),
    [
        (4, ["<answer>the town of Lumloom</answer>"], 0, {"done": True, "won": False, "contains_match": 1.0}),
        (4, ["<search>a</search>"] * 4, 3, {"observation": "", "done": False, "answered": False}),
        (1, ["<answer>Lumloom</answer>"], 0, {"won": True}),
        (4, ["<think>hm</think>"], 0, {"observation": "", "done": False, "turns": 1}),
        (4, ["<search><answer>Lumloom</answer></search>"], 1, {"done": False, "action": "search"}),
        (4, ["<search></search>"], 1, {"action": "search"}),
        (2, ["<search>Lumloom</search>", "<search>again</search>"], 1, {"won": False, "reward": 0.0}),
    ],
    ids=["wrong", "last turn", "answer on the last turn", "no action", "nested", "empty query", "answer in a passage"],
)
def test_what_a_turn_is_worth(max_turns: int, responses: list[str], asked: int, last: dict[str, Any]) -> None:
    episode = started(max_turns=max_turns)
    for response in responses:
        projection = episode.project(response)
        assert response.startswith("<think>") == (projection == Projection("", False))
        step = episode.step(projection.action)
    told = {**vars(step), **step.metrics, **step.info}
    assert {name: told[name] for name in last} == last and step.reward == float(step.won)
    assert len(episode.retriever.asked) == asked  # ty: ignore[missing-attribute]
    if asked == 1:
        query = responses[0].removeprefix("<search>").removesuffix("</search>")
        assert episode.retriever.asked == [[query]]  # ty: ignore[missing-attribute]


def test_search_r1_corrects_an_invalid_turn() -> None:
    episode = started(projection="search_r1", max_turns=2)
    assert "<search> and </search>" in episode.step("").observation
    assert episode.step("").observation == ""


@pytest.mark.parametrize("style", ["plain", "json"])
def test_a_failed_search_is_said(style: str) -> None:
    step = started(style=style).step("<search>fail</search>")
    assert "The search failed" in step.observation and step.observation.startswith("<information>")
    assert not step.done and step.info["failure"] == "down"


def test_json_style_escapes_and_plain_style_does_not() -> None:
    assert show([], "plain") == "<information></information>"
    assert show([], "json") == '<information>{"result": ""}</information>'
    passages = [Passage('"Café "X""\nLine é'), Passage('"B"\nb')]
    assert show(passages, "plain") == (
        '<information>Doc 1(Title: "Café "X"") Line é\nDoc 2(Title: "B") b</information>'
    )
    assert show(passages, "json") == (
        '<information>{"result": "Doc 1: \\"Caf\\u00e9 \\"X\\"\\"\\nLine \\u00e9\\n'
        'Doc 2: \\"B\\"\\nb\\n"}</information>'
    )
    assert read_titles(show(passages, "plain")) == read_titles(show(passages, "json"))


@pytest.mark.parametrize("wrong", [{"style": "xml"}, {"projection": "other"}, {"top_k": 0}, {"max_turns": 0}])
def test_wrong_options_are_refused_by_the_factory(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        SearchQAFactory(Echo(), **wrong)


def test_stepping_outside_an_episode_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        SearchQA(Echo()).step("")
    episode = started()
    episode.step("<answer>x</answer>")
    with pytest.raises(RuntimeError):
        episode.step("<answer>Lumloom</answer>")


TAGGED = st.lists(
    st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "<SEARCH>", "</Answer>", "a", "\n", "é", " "]),
    max_size=12,
).map("".join)


@given(response=st.one_of(st.text(), TAGGED), projection=st.sampled_from(["agent_loop", "search_r1"]))
def test_no_response_raises(response: str, projection: str) -> None:
    episode = started(projection=projection)
    found = episode.project(response)
    assert found.action or not found.valid
    step = episode.step(found.action)
    assert step.reward == float(step.won)
    assert started().step(response).score in (0.0, 1.0)


@pytest.mark.parametrize("part", ["<search>", "<answer>", "</search>", "<search>\n", "a", "é", " ", "e\u0301", "yx"])
def test_a_huge_response_is_read_in_linear_time(part: str) -> None:
    """Quadratic patterns take minutes here."""
    text = part * 20_000
    for projection in ("agent_loop", "search_r1"):
        episode = SearchQA(BM25, projection=projection)
        for response in (text, f"<search>{text}</search>", f"<answer>{text}</answer>"):
            episode.reset(**TASK)
            assert episode.step(episode.project(response).action).score == 0.0


def test_pairs_are_those_of_the_lazy_patterns() -> None:
    """The one-pass readers against the patterns that the rules are stated in."""
    tags = ["<search>", "</search>", "<answer>", "</answer>", "<SEARCH>", "</Answer>", "x"]
    for parts in itertools.product(tags, repeat=5):
        text = "".join(parts)
        head, closing, _ = text.partition("</search>" if "</search>" in text else "</answer>")
        cut = head + closing
        first = re.search(r"<(search|answer)>(.*?)</\1>", cut, re.DOTALL)
        assert project_search_r1(text).action == (f"<{first[1]}>{first[2]}</{first[1]}>" if first else "")
        pairs = [re.search(f"<{kind}>(.*?)</{kind}>", cut, re.DOTALL | re.I) for kind in ("search", "answer")]
        kind, match = ("search", pairs[0]) if pairs[0] else ("answer", pairs[1])
        assert project_agent_loop(text).action == (f"<{kind}>{match[1]}</{kind}>" if match else "")


def view(*history: tuple[str, str], first: int = 1, count: int | None = None) -> View:
    records = tuple(Record(first + i, "", action, result) for i, (action, result) in enumerate(history))
    return View("Where is it?", "", (), records, len(records) if count is None else count)


def test_a_prompt_shows_the_memory_under_its_numbers() -> None:
    first = SearchQAPrompt().render(view())
    assert first.startswith(
        "You are an expert agent tasked with answering the given question step-by-step.\n"
        "Your question: Where is it?\n\nNow it's your turn to respond for the current step.\n"
    )
    assert first.endswith("For example, <answer>Beijing</answer>.")
    later = SearchQAPrompt().render(view(("<search>a</search>", "<information>x</information>"), ("", "")))
    memory = "Step 1:<search>a</search> <information>x</information>\n\nStep 2: \n"
    assert "already taken 2 step(s).\n" in later and f"engine. History:\n{memory}\n\nNow it's your" in later
    shortened = SearchQAPrompt().render(view(("<search>c</search>", "r"), first=3, count=3))
    assert "already taken 3 step(s)" in shortened and "History:\nStep 3:<search>c</search> r\n" in shortened


def test_batch_equals_single_episodes() -> None:
    scripts = [
        ["<search>a</search>", "<answer>Lumloom</answer>"],
        ["", "<search>a</search>"],
        ["<search>fail</search>", ""],
    ]
    batch, single = open_batch(SearchQAFactory(Echo()), 3), []
    batch.reset(range(3), [TASK] * 3)
    together = list(zip(*[batch.step(range(3), [s[turn] for s in scripts]) for turn in range(2)], strict=True))
    for script in scripts:
        episode = started()
        single.append(tuple(episode.step(action) for action in script))
    assert together == single


def test_a_broken_row_costs_its_own_slot() -> None:
    batch = open_batch(SearchQAFactory(Echo()), 2)
    first, second = batch.reset([0, 1], [{"data_source": "nq"}, TASK])
    assert isinstance(first, Failure) and second.task_text == "Where is it?"
    assert second.data_source == second.category == "nq"
    broken, fine = batch.step([0, 1], ["<search>a</search>"] * 2)
    assert isinstance(broken, Failure) and fine.observation


def test_the_suite_is_found_by_name() -> None:
    suite = load("searchqa")
    assert suite.name == "searchqa" and len(suite.panel("test")) == 200
    assert suite.description["retrieval"]["backend"] == "bm25"
    assert suite.categories[0] == "nq" and len(suite.categories) == 7
    row = suite.tasks("train")[0]
    assert suite.factory().reset(**row, seed=3).observation == row["question"]


def test_the_gymnasium_face() -> None:
    game = gymnasium.make("alignopsd_trl.environments.searchqa:SearchQA-v0", panel="test")
    check_env(game.unwrapped, skip_render_check=True)
    question, info = game.reset(options={"index": 0})
    assert (question, info["task_id"]) == ("in which year was lidda eskerry born", "nq/test_0")
    observation, reward, terminated, truncated, _ = game.step("<search>Lidda Eskerry</search>")
    assert "1868" in observation and (reward, terminated, truncated) == (0.0, False, False)
    _, reward, terminated, truncated, info = game.step("<answer>1868</answer>")
    assert (reward, terminated, truncated, info["won"]) == (1.0, True, False, True)
    game.reset(seed=3)
    assert [game.step("")[2:4] for _ in range(4)] == [(False, False)] * 3 + [(False, True)]
