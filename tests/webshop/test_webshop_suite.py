"""The trainer's side: prompts, projection, rewards, batches, tasks and panels."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webshop_catalogues import entry, write

from alignopsd_trl.environments.base import Failure, Record, Suite, View
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.webshop.prompt import WebShopPrompt, project
from alignopsd_trl.environments.webshop.tasks import test_size as size_of_test


@pytest.fixture
def suite(options: dict[str, Any]) -> Suite:
    return load("webshop", **options)


def view(records: int = 0, shown: int = 2, observation: str = "'Search'") -> View:
    history = [Record(n, f"'seen {n}'", f"click[{n}]", "'after'") for n in range(1, records + 1)]
    return View("buy {a} shirt", observation, ("search[<your query>]", "click[x]"), tuple(history[-shown:]), records)


FIRST = """You are an expert autonomous agent operating in the WebShop e-commerce environment.
Your task is to: buy {a} shirt.
You are now at step 1 and your current observation is: 'Search'.
Your admissible actions of the current situation are:
[
'search[<your query>]',
'click[x]',
].

Now it's your turn"""


def test_first_turn_has_no_history_and_no_trace_of_a_skill() -> None:
    assert WebShopPrompt().render(view()).startswith(FIRST)
    assert WebShopPrompt().render(view()).endswith("<action> </action> tags.")
    assert WebShopPrompt().render(view(), "  \n") == WebShopPrompt().render(view())


def test_later_turns_show_numbered_records() -> None:
    text = WebShopPrompt().render(view(3))
    wanted = (
        "Prior to this step, you have already taken 3 step(s). Below are the most recent 2 observations and the "
        "corresponding actions you took: [Observation 2: ''seen 2'', Action 2: 'click[2]']\n"
        "[Observation 3: ''seen 3'', Action 3: 'click[3]']\nYou are now at step 4 and"
    )
    assert wanted in text


def test_a_prompt_that_is_too_long_loses_its_history_with_and_without_skill() -> None:
    prompt, long = WebShopPrompt(), view(2, observation="x" * 12_300)
    short = View(long.task_text, long.observation, long.admissible, (), long.step_count)
    assert "Prior to this step" in prompt.render(view(2, observation="x" * 11_000), "skill " * 1000)
    assert prompt.render(long) == prompt.render(short)
    assert "You are now at step 3" in prompt.render(long)


def test_compact_prompts_are_short(options: dict[str, Any]) -> None:
    small = load("webshop", template="compact", observation="compact", results_per_page=3, **options)
    batch = small.factory.batch(1)  # ty: ignore[missing-attribute]
    (opening,) = batch.reset([0], [small.panel("test").rows[0]])
    assert opening.admissible == ("search[<your query>]",)
    (step,) = batch.step([0], ["search[henley shirt]"])
    shown = View(opening.task_text, step.observation, step.admissible, (), 1)
    assert len(batch.prompt.render(shown).split()) < 130
    assert "back to search" not in step.observation
    link = next(action for action in step.admissible if action.startswith("click[b0"))
    assert link.removeprefix("click[").rstrip("]") in step.observation
    (item,) = batch.step([0], [link])
    assert item.admissible[-1].startswith("click[")
    (chosen,) = batch.step([0], [item.admissible[-1]])
    assert chosen.observation.endswith("chosen " + item.admissible[-1][6:-1])


def test_templates_with_mistakes_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{{ task }} {{ page }}")
    with pytest.raises(ValueError, match="asks for page; a template knows admissible, history,"):
        WebShopPrompt(own)
    own.write_text("buy something")
    with pytest.raises(ValueError, match="shows nothing of a turn"):
        WebShopPrompt(own)
    own.write_text("{% if task %}")
    with pytest.raises(ValueError, match="is no jinja template"):
        WebShopPrompt(own)


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        ("<think>a</think><action> Click[X] </action>", "click[x]", True),
        ("<action>search[a]</action>", "search[a]", False),
        ("<Think>a</Think><ACTION>search[a]</ACTION>", "search[a]", False),
        ("<think></think> I would like to buy now", "i would like to buy now"[-20:], False),
        ("</action><think></think><action>x", "", True),
        ("<think>日</think><action>x</action>", "x", False),
        ("", "", False),
    ],
)
def test_projection(response: str, action: str, valid: bool) -> None:
    assert project(response) == (type(project(response)))(action, valid)


@given(st.text())
def test_projection_takes_anything(response: str) -> None:
    assert isinstance(project(response).action, str)


def buy_the_goal(suite: Suite, index: int = 0) -> Any:
    """Finds the goal's own product, chooses its options and buys it."""
    environment = suite.factory()
    environment.reset(goal_index=index)
    goal = environment._session.goal  # ty: ignore[missing-attribute]
    for action in (f"search[{goal['name']}]", f"click[{goal['asin']}]"):
        environment.step(action)
    for value in goal["goal_options"].values():
        environment.step(f"click[{value}]")
    return environment.step("click[buy now]")


def test_terminal_rewards(options: dict[str, Any]) -> None:
    step = buy_the_goal(load("webshop", **options))
    assert (step.done, step.won, step.score, step.reward) == (True, True, 1.0, 10.0)
    assert step.admissible == ()
    assert step.info["breakdown"]["r_type"] == 1.0
    assert step.observation == step.info["raw_observation"]
    assert buy_the_goal(load("webshop", won_reward=1.0, **options)).reward == 1.0
    environment = load("webshop", reward="score", **options).factory()
    environment.reset(goal_index=0)
    results = environment.step("search[tea]")
    assert results.reward == 0.0
    environment.step(results.admissible[2])
    step = environment.step("click[buy now]")
    assert step.reward == step.score < 1.0


def test_validity_rules(options: dict[str, Any]) -> None:
    for rule, wanted in (("format", True), ("admissible", False)):
        environment = load("webshop", validity=rule, **options).factory()
        environment.reset(goal_index=0)
        assert environment.step("search[tea]").valid is True
        assert environment.step("click[no such thing]").valid is wanted


def test_a_batch_steps_like_single_environments_and_survives_a_bad_task(suite: Suite) -> None:
    rows = [dict(row) for row in suite.tasks("test").select(range(4))]
    batch, singles = suite.factory.batch(4, 60.0), [suite.factory() for _ in range(4)]  # ty: ignore[missing-attribute]
    rows[2]["goal_index"] = 10**6
    openings = batch.reset([0, 1, 2, 3], rows)
    assert isinstance(openings[2], Failure) and "IndexError" in openings[2].message
    kept = [0, 1, 3]
    assert [openings[slot] for slot in kept] == [singles[slot].reset(**rows[slot]) for slot in kept]
    for action in ("search[tea]", "click[next >]", "bad", "click[< prev]"):
        assert batch.step(kept, [action] * 3) == [singles[slot].step(action) for slot in kept]
    assert openings[0].task_text == rows[0]["instruction"]
    assert openings[0].category == rows[0]["category"]
    batch.close()


def test_factories_can_be_sent_to_a_process(suite: Suite) -> None:
    again = pickle.loads(pickle.dumps(suite.factory))
    assert again().reset(goal_index=3) == suite.factory().reset(goal_index=3)


def test_step_before_reset_is_named(suite: Suite) -> None:
    with pytest.raises(RuntimeError, match="reset"):
        suite.factory().step("search[x]")


def test_canonical_splits_are_disjoint_and_fixed(suite: Suite, options: dict[str, Any]) -> None:
    train, test = suite.tasks("train"), suite.tasks("test")
    assert not set(train["task_id"]) & set(test["task_id"])
    assert not set(train["instruction"]) & set(test["instruction"])
    assert test["goal_index"] == list(range(size_of_test(suite.description["goals"])))
    assert suite.panel("test").checksum == load("webshop", **options).panel("test").checksum
    assert suite.panel("test").checksum != load("webshop", human_goals=True, **options).panel("test").checksum
    assert set(test["category"]) <= set(suite.categories)
    with pytest.raises(ValueError, match="split must be one of"):
        suite.tasks("dev")


@pytest.mark.parametrize(("goals", "test"), [(6910, 500), (1000, 500), (999, 499), (2, 1)])
def test_size_of_the_test_split(goals: int, test: int) -> None:
    assert size_of_test(goals) == test


def test_released_splits_play_their_own_goal_lists(options: dict[str, Any]) -> None:
    released = load("webshop", splits="released", **options)
    assert "overlap" in released.description["split_rule"]
    train = released.tasks("train")
    assert set(train["env_seed"]) == set(range(16))
    assert set(released.tasks("test")["env_seed"]) == set(range(1000, 1128))
    environment = released.factory()
    for row in train.select(range(3)):
        assert environment.reset(**row).task_text == row["instruction"]
    assert len(released.panel("train")) == len(train)


def test_changed_data_is_noticed_within_a_process(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", [entry(), entry("B000000002")])
    before = load("webshop", data_dir=folder, cache_dir=tmp_path)
    write(folder, [entry(), entry("B000000002"), entry("B000000003")])
    after = load("webshop", data_dir=folder, cache_dir=tmp_path)
    assert (before.description["products"], after.description["products"]) == (2, 3)


def test_options_are_checked(options: dict[str, Any]) -> None:
    for name, value in (("reward", "both"), ("observation", "html"), ("splits", "mine"), ("max_turns", 0)):
        with pytest.raises(ValueError, match=name):
            load("webshop", **{name: value}, **options)
    with pytest.raises(ValueError, match="nouns must be"):
        load("webshop", nouns="wordnet", **options)
    with pytest.raises(ValueError, match="num_products"):
        load("webshop", num_products=0, **options)


def test_the_embedded_catalogue_is_big_enough_for_a_test_of_500(cache: Path) -> None:
    embedded = load("webshop", cache_dir=str(cache))
    assert embedded.description["products"] >= 500
    assert len(embedded.panel("test")) == 500
    assert len(embedded.tasks("train")) >= 500
