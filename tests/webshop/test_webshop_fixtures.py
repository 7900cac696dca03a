"""Recorded behaviour of the original, compared for equality (floats bit for bit).

``ALIGNOPSD_WEBSHOP_FIXTURES`` names the folder; files are found by pattern, and a suffix letter ties a file to its
catalogue (``products_b.json`` belongs to ``catalogue_b``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from webshop_files import FIXTURES, read_json

from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.environments.webshop.engine import reward
from alignopsd_trl.environments.webshop.engine.classic import ClassicWebShop
from alignopsd_trl.environments.webshop.engine.fuzzy import similar
from alignopsd_trl.environments.webshop.engine.goals import GoalList, session_name
from alignopsd_trl.environments.webshop.engine.index import Catalogue
from alignopsd_trl.environments.webshop.engine.nouns import standin
from alignopsd_trl.environments.webshop.engine.shop import Shop
from alignopsd_trl.environments.webshop.engine.tables import normalize_color
from alignopsd_trl.environments.webshop.environment import prompt_actions, prompt_observation
from alignopsd_trl.environments.webshop.prompt import WebShopPrompt, project
from alignopsd_trl.environments.webshop.tasks import task_draws

CatalogueOf = Callable[[str], Catalogue]


def files(pattern: str) -> list[Path]:
    return sorted(FIXTURES.glob(pattern))


def named(pattern: str) -> Any:
    found = files(pattern)
    return pytest.mark.parametrize("path", found, ids=[path.stem for path in found])


def cases(pattern: str) -> list[tuple[str, Any]]:
    return [(f"{path.stem}-{n}", case) for path in files(pattern) for n, case in enumerate(read_json(path))]


def catalogue_name(path: Path) -> str:
    return f"catalogue_{path.stem.rsplit('_', 1)[-1]}"


def goal_lists(pattern: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path.stem, mode, record)
        for path in files(pattern)
        for mode, record in read_json(path).items()
        if "variant_seeding" not in path.stem or "variant_seeding" in pattern
    ]


def listed(goals: GoalList) -> list[dict[str, Any]]:
    return [goals[index] for index in range(len(goals))]


def test_there_is_something_to_compare_with() -> None:
    assert files("catalogue_*"), f"no catalogue_* in {FIXTURES}"


@named("products_*.json")
def test_products_after_cleaning(path: Path, catalogue_of: CatalogueOf) -> None:
    catalogue, wanted = catalogue_of(catalogue_name(path)), read_json(path)
    found = [catalogue.record(row) for row in range(len(catalogue))]
    assert [product["asin"] for product in found] == list(wanted)
    for product, (asin, expected) in zip(found, wanted.items(), strict=True):
        expected.pop("price", None)  # checked with the goals, under their construction seed
        assert {key: product[key] for key in expected} == expected, asin
        assert list(product["options"]) == list(expected["options"]), asin


@named("products_*.json")
def test_sampled_prices_of_products(path: Path, catalogue_of: CatalogueOf) -> None:
    letter = path.stem.rsplit("_", 1)[-1]
    recorded = FIXTURES / f"goals_{letter}.json"
    seed = read_json(recorded)["synthetic"]["construct_seed"] if recorded.exists() else 7
    goals = GoalList(catalogue_of(catalogue_name(path)), construct_seed=seed)
    assert goals.prices.tolist() == [product["price"] for product in read_json(path).values()]


@pytest.mark.parametrize(("stem", "mode", "record"), goal_lists("goals_*.json"))
def test_goals(catalogue_of: CatalogueOf, stem: str, mode: str, record: dict[str, Any]) -> None:
    catalogue = catalogue_of(f"catalogue_{stem.rsplit('_', 1)[-1]}")
    seeds = {"construct_seed": record["construct_seed"], "shuffle_seed": record["shuffle_seed"]}
    goals = GoalList(catalogue, human_goals=mode == "human", **seeds)
    assert len(goals) == record["n_goals"]
    for found, wanted in zip(listed(goals), record.get("goals", ()), strict=False):
        assert found == wanted
        assert type(found["price_upper"]) is type(wanted["price_upper"])
    text = json.dumps(listed(goals), sort_keys=True, ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == record["goals_sha256_sorted_keys_json"]
    asins = (catalogue.record(row)["asin"] for row in range(len(catalogue)))
    assert dict(zip(asins, goals.prices.tolist(), strict=True)) == record["product_prices"]
    drawn = [(session_name(goals.generator), goals.draw()) for _ in record["reset_without_session_names"]]
    assert [name for name, _ in drawn] == record["reset_without_session_names"]
    assert [index for _, index in drawn] == record["reset_without_session_goal_indices"]
    for key in (key for key in record if key.startswith("limit_goals_")):
        limited = GoalList(catalogue, human_goals=mode == "human", limit_goals=int(key.split("_")[2]), **seeds)
        assert [goal["instruction_text"] for goal in listed(limited)] == record[key]


@pytest.mark.parametrize(("stem", "mode", "record"), goal_lists("goals_variant_seeding_*.json"))
def test_goals_under_the_released_seeding(
    catalogue_of: CatalogueOf, stem: str, mode: str, record: dict[str, Any]
) -> None:
    seed, kind = mode.removeprefix("seed").split("_")
    catalogue = catalogue_of(f"catalogue_{stem.rsplit('_', 1)[-1]}")
    goals = listed(GoalList(catalogue, human_goals=kind == "human", construct_seed=int(seed), shuffle_seed=int(seed)))
    assert len(goals) == record["n_goals"]
    for key in (key for key in record if key.startswith("first_")):
        assert goals[: len(record[key])] == record[key]
    assert [goal["asin"] for goal in goals] == record["asin_order"]
    assert [goal["price_upper"] for goal in goals] == record["price_upper_order"]


@named("searches_*.json")
def test_rankings(path: Path, catalogue_of: CatalogueOf) -> None:
    catalogue = catalogue_of(catalogue_name(path))
    for query, wanted in read_json(path).items():
        found = catalogue.ranking(query)
        assert [asin for asin, _ in found] == [asin for asin, _ in wanted], query
        for (asin, score), (_, expected) in zip(found, wanted, strict=True):
            assert abs(score - expected) <= 1.01e-4, (query, asin)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases("fuzzy_vectors*.json")])
def test_token_set_ratio(case: dict[str, Any]) -> None:
    second = tuple(case["b_tuple"]) if "b_tuple" in case else case["b"]
    ratio = case["token_set_ratio"]
    assert similar(case["a"], second) == (ratio > 85)
    assert not similar(case["a"], second, ratio)
    assert ratio == 0 or similar(case["a"], second, ratio - 1)


@named("normalize_color*.json")
def test_colour_words(path: Path) -> None:
    for case in read_json(path):
        assert normalize_color(case["in"]) == case["out"], case["in"]


@named("nouns_standin*.json")
def test_nouns(path: Path) -> None:
    for case in read_json(path):
        assert list(standin(case["title"])) == case["nouns"], case["title"]


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases("reward_vectors*.json")])
def test_reward(case: dict[str, Any]) -> None:
    total, breakdown = reward.score(case["purchased"], case["goal"], case["price"], case["options"], standin)
    assert total == case["reward"]
    assert breakdown == case["breakdown"]


def episodes() -> list[Any]:
    paths = files("episodes*/*.json")
    return [pytest.param(read_json(path), id=f"{path.parent.name}-{path.stem}") for path in paths]


def open_classic(catalogue: Catalogue, env: dict[str, Any], **seeds: int) -> ClassicWebShop:
    goals = GoalList(catalogue, human_goals=env["human_goals"], **seeds)
    shop = Shop(catalogue, goals, show_attributes=env.get("show_attrs", False))
    return ClassicWebShop(
        shop,
        num_prev_obs=env.get("num_prev_obs", 0),
        num_prev_actions=env.get("num_prev_actions", 0),
        reset_after_purchase="seed" in env,
    )


@pytest.mark.parametrize("episode", episodes())
def test_episode(episode: dict[str, Any], catalogue_of: CatalogueOf) -> None:
    env = episode["env"]
    seeds = {"construct_seed": env["construct_seed"], "shuffle_seed": env["shuffle_seed"]}
    play = open_classic(catalogue_of(episode["catalogue"]), env, **seeds)
    observation, info = play.reset(episode["goal_index"])
    assert play.session.goal == episode["goal"]
    assert play.session.goal["instruction_text"] == episode["instruction"]
    compare_page(play, observation, info, episode["reset"])
    for step in episode["steps"]:
        observation, reward, done, info = play.step(step["action"])
        compare_page(play, observation, info, step)
        assert (reward, type(reward).__name__, done) == (step["reward"], step["reward_type"], step["done"])
        assert play.breakdown == step.get("reward_breakdown")
        compare_state(play, step["state"])


def compare_page(play: ClassicWebShop, observation: str, info: None, wanted: dict[str, Any]) -> None:
    where = wanted.get("action", "reset")
    assert observation == wanted["observation"], where
    assert play.session.rich == wanted["observation_text_rich"], where
    assert play.get_available_actions() == wanted["available_actions"], where
    assert info == wanted["info"]


def compare_state(play: ClassicWebShop, wanted: dict[str, Any]) -> None:
    session = play.session
    assert session.asin == wanted["asin"]
    assert list(session.options.items()) == list(wanted["options"].items())
    assert (session.keywords, session.page) == (wanted["keywords"], wanted["page"])
    assert session.visited == set(wanted["asins"])


@pytest.mark.parametrize("episode", episodes())
def test_rankings_inside_episodes(episode: dict[str, Any], catalogue_of: CatalogueOf) -> None:
    catalogue = catalogue_of(episode["catalogue"])
    shop = Shop(catalogue, GoalList(catalogue))
    for query, wanted in episode["searches"].items():
        if not query.startswith("<r>"):  # random products
            found = shop.search(query.split(" "), Random(0))
            assert [catalogue.product(row)["asin"] for row in found] == wanted, query


@pytest.mark.parametrize("episode", [pytest.param(case, id=case["id"]) for _, case in cases("wrapper_episodes*.json")])
def test_wrapper_episode(episode: dict[str, Any], catalogue_of: CatalogueOf) -> None:
    seed, name = episode["env"]["seed"], f"catalogue_{episode['catalogue'].lower().removeprefix('catalogue_')}"
    play = open_classic(catalogue_of(name), episode["env"], construct_seed=seed, shuffle_seed=seed)
    raw, _ = play.reset(episode["goal_index"])
    assert len(play.shop.goals) == episode["n_goals"]
    assert play.session.goal == episode["goal"]
    task = raw.split(" [SEP] ")[2]
    assert task == episode["task_description"]
    prompt, shown, records = WebShopPrompt("paper"), prompt_observation(raw, task), []
    assert (raw, shown) == (episode["reset"]["raw_observation"], episode["reset"]["current_observation"])
    assert offered(prompt, play) == episode["reset"]["available_actions"]
    for step in episode["steps"]:
        projected = project(step["response"])
        assert (projected.action, projected.valid) == (step["action"], bool(step["is_action_valid"]))
        raw, score, done, _ = play.step(projected.action)
        answer = prompt_observation(raw, task)
        records.append(Record(len(records) + 1, shown, projected.action, answer))
        shown = answer
        won = done and score == 1.0
        assert (raw, shown) == (step["raw_observation"], step["current_observation"])
        assert offered(prompt, play) == step["available_actions"]
        assert (score, done, won) == (step["task_score"], step["done"], step["won"])
        assert (10.0 if won else 0) == step["reward"]
        compare_history(prompt, records, episode["env"]["history_length"], step)


def offered(prompt: WebShopPrompt, play: ClassicWebShop) -> str:
    """The list of actions in the message of a turn."""
    message = prompt.render(View("", "", prompt_actions(play.session), (), 0))
    return message.split("\n[\n", 1)[1].split("\n].\n", 1)[0]


def compare_history(prompt: WebShopPrompt, records: list[Record], length: int, step: dict[str, Any]) -> None:
    view = View("", "", (), tuple(records[-length:]), len(records))
    head = f"most recent {len(view.history)} observations and the corresponding actions you took: "
    assert (view.step_count, view.step_count + 1) == (step["step_count"], step["current_step"])
    assert len(view.history) == step["history_length"]
    assert f"{head}{step['action_history']}\nYou are now at step {step['current_step']}" in prompt.render(view)


@named("task_draws*.json")
def test_task_draws(path: Path) -> None:
    for name, wanted in read_json(path).items():
        words = name.split("_")
        seed, env, group = (
            int(next(word for word in words if word.startswith(key) and word != key).removeprefix(key))
            for key in ("seed", "env", "group")
        )
        first = next(place for place, word in enumerate(words) if word.startswith("pool"))
        pool = range(int(words[first].removeprefix("pool")), int(words[first + 1]))
        assert list(islice(task_draws(pool, env, group, seed), len(wanted))) == wanted, name
