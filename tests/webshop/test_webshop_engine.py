"""The page machine: quirks by hand, and properties of every string and every transcript."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from webshop_catalogues import entry, write

from alignopsd_trl.environments.webshop.engine.classic import ClassicWebShop
from alignopsd_trl.environments.webshop.engine.goals import GoalList
from alignopsd_trl.environments.webshop.engine.index import Catalogue, open_catalogue
from alignopsd_trl.environments.webshop.engine.session import ShopSession, parse
from alignopsd_trl.environments.webshop.engine.shop import Shop

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Made = Callable[..., ShopSession]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A session in a shop of the given raw products."""

    def make(*items: dict[str, Any], **options: Any) -> ShopSession:
        catalogue = open_catalogue(write(tmp_path / "data", list(items)), cache_dir=tmp_path, progress=False)
        shop = Shop(catalogue, GoalList(catalogue), **options)
        return ShopSession(shop, shop.goals[0], Random(0))

    return make


def values(*texts: str) -> list[dict[str, str]]:
    return [{"value": text} for text in texts]


def walk(session: ShopSession, *actions: str) -> list[Any]:
    return [session.step(action) for action in actions]


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("click[Buy Now] please", ("click", "buy now")),
        ("search[ ]", ("search", " ")),
        ("search[a[b]c]", ("search[a", "b]c")),
        ("search[]", None),
        ("[x]", None),
        (" click[x]", (" click", "x")),
        ("click[a\nb]", None),
        ("x\nclick[a]", None),
        ("", None),
    ],
)
def test_action_grammar(action: str, parsed: tuple[str, str] | None) -> None:
    assert parse(action) == parsed


@given(st.text(alphabet="ab[]\n ", max_size=12))
def test_action_grammar_is_that_of_a_greedy_expression(action: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", action)
    assert parse(action) == (match and (match[1], match[2].lower()))


def test_long_strings_take_linear_time(shop: Shop) -> None:
    session = ShopSession(shop, shop.goals[0], Random(0))
    queries = ("_" * 200_000, "_" * 50_000 + "é", "a_" * 50_000 + "é", "½ " * 50_000)
    for action in ("[" * 200_000, "search[" * 40_000 + "]", *(f"search[{query}]" for query in queries)):
        session.step(action)


def test_buttons_win_over_options_of_the_same_name(made: Made) -> None:
    options = {"kind": values("description", "attributes", "next >", "search", "back to search", "shiny")}
    session = made(entry(customization_options=options))
    walk(session, "search[shirt]", "click[b000000001]", "click[description]")
    assert (session.kind.value, session.options) == ("sub_page", {})
    walk(session, "click[< prev]", "click[attributes]")
    assert "[SEP] fashion [SEP] shirts [SEP]" in session.text
    walk(session, "click[< prev]", "click[next >]")
    assert (session.kind.value, session.options) == ("item", {"kind": "next >"})
    assert session.step("click[search]") == (0, False, None)
    walk(session, "click[back to search]")
    assert session.kind.value == "search"


def test_a_value_of_two_options_sets_the_later_one(made: Made) -> None:
    session = made(entry(customization_options={"color": values("one", "two"), "size": values("one")}))
    walk(session, "search[shirt]", "click[b000000001]", "click[one]", "click[one]")
    assert session.options == {"size": "one"}
    assert session.clickables.count("one") == 1
    walk(session, "click[< prev]")
    assert (session.kind.value, session.options, session.visited) == ("results", {}, {"B000000001"})


def test_pieces_of_white_space(made: Made) -> None:
    session = made(entry(small_description=["", "\n", "\u00a0", " x\n y "], full_description=" \t"))
    walk(session, "search[shirt]", "click[b000000001]", "click[features]")
    tail = "< Prev [SEP] "
    assert session.text.split(tail)[1] == " [SEP]  [SEP] x\n y"
    walk(session, "click[< prev]", "click[description]")
    assert session.text.endswith("< Prev [SEP] ")


def test_receipt_escapes_the_options(made: Made) -> None:
    session = made(entry(customization_options={"b": values("é<'&>"), "a": values("x")}))
    walk(session, "search[shirt]", "click[b000000001]", "click[é<'&>]", "click[x]")
    answer = session.step("click[buy now]")
    assert answer.done and answer.breakdown is not None
    assert '{"a": "x", "b": "\\u00e9\\u003c\\u0027\\u0026\\u003e"} [SEP]' in session.text
    assert session.clickables == []
    assert session.step("click[buy now]") == (0, False, None)
    assert session.step("search[shirt]").done is False


def test_special_searches(made: Made) -> None:
    items = [entry(f"B{n:09d}", category="fashion" if n % 2 else "beauty", query="q w") for n in range(60)]
    session = made(*items)

    def total(query: str) -> str:
        session.step(f"search[{query}]")
        return session.text.split("Total results: ")[1].split(")")[0]

    queries = ("<c> fashion", "<q> q w", "<r>", "<a> x", "<c>", "<c> no")
    assert [total(query) for query in queries] == "30 60 50 0 0 0".split()
    assert total("shirt") == "50"
    walk(session, *["click[next >]"] * 6)
    assert "Page 7 (Total results: 50) [SEP] < Prev [SEP] Next >" in session.text
    plain = ShopSession(Shop(session.shop.catalogue, session.shop.goals, specials=False), session.goal, Random(0))
    plain.step("search[<c> fashion]")
    assert "Total results: 0" in plain.text


def test_results_per_page(made: Made) -> None:
    session = made(*(entry(f"B{n:09d}") for n in range(5)), results_per_page=3)
    session.step("search[shirt]")
    assert session.clickables[2:] == ["b000000000", "b000000001", "b000000002"]
    session.step("click[next >]")
    assert session.clickables[3:] == ["b000000003", "b000000004"]


def test_chosen_options_in_the_rich_mode(made: Made) -> None:
    session = made(entry(customization_options={"color": values("red", "é", "color"), "size": values("m")}))
    walk(session, "search[shirt]", "click[b000000001]", "click[red]", "click[m]")
    rich = session.rich
    assert rich.startswith("You have clicked m.\nYou have clicked color.\nYou have clicked red.\nInstruction:\n")
    assert "  [clicked button] red [clicked button_]\n" in rich
    assert "  [button] é [button_]\n" in rich
    session.step("click[é]")
    assert "[clicked button] é" not in session.rich


def test_names_keep_their_goal_and_integers_are_indices(shop: Shop) -> None:
    play = ClassicWebShop(shop)
    play.reset("someone")
    first = play.session.goal
    play.reset(5)
    assert play.session.goal == shop.goals[5]
    play.reset("5")
    assert play.session.goal == shop.goals[5]
    play.reset(-1)
    assert play.session.goal == shop.goals[len(shop.goals) - 1]
    play.reset("someone")
    assert play.session.goal == first
    with pytest.raises(IndexError):
        play.reset(len(shop.goals))


def test_the_process_wide_generators_are_left_alone(small: Catalogue) -> None:
    import random

    random.seed(1)
    before = random.getstate()
    session = ShopSession(Shop(small, GoalList(small, limit_goals=5)), GoalList(small)[0], Random(0))
    walk(session, "search[<r>]", "search[tea]")
    assert random.getstate() == before


actions = st.one_of(
    st.text(max_size=30),
    st.text(max_size=30).map(lambda text: f"search[{text}]"),
    st.text(alphabet=" <>rcqa'’.,1½日é😀\u0300\u200d-_", max_size=20).map(lambda text: f"search[{text}]"),
    st.text(max_size=10).map(lambda text: f"click[{text}]"),
)


@QUICK
@given(st.lists(actions, max_size=12), st.integers(0, 300))
def test_any_string_is_legal(shop: Shop, tried: list[str], goal: int) -> None:
    session = ShopSession(shop, shop.goals[goal % len(shop.goals)], Random(0))
    for action in tried:
        before = (session.text, session.clickables)
        reward, done, breakdown = session.step(action)
        assert not done or breakdown is not None
        if type(reward) is int:
            assert (session.text, session.clickables) == before
        assert session.rich.isascii() or session.rich


@QUICK
@given(st.lists(st.integers(0, 1000), max_size=25), st.integers(0, 300), st.integers(0, 3))
def test_transcripts_follow_from_catalogue_seeds_and_actions(
    small: Catalogue, choices: list[int], goal: int, seed: int
) -> None:
    def play() -> list[Any]:
        shop = Shop(small, GoalList(small, construct_seed=seed, shuffle_seed=seed))
        session = ShopSession(shop, shop.goals[goal % len(shop.goals)], Random(seed))
        record: list[Any] = [session.goal, session.text]
        for choice in choices:
            offered = [f"click[{name}]" for name in session.clickables] + ["search[tea]", "search[<r>]"]
            record += [session.step(offered[choice % len(offered)]), session.text, session.rich, session.clickables]
        return record

    assert play() == play()
