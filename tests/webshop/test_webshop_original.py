"""Rewards and their pieces by hand, with the cases of the original's own tests."""

from __future__ import annotations

import json
import random
import re
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignopsd_trl.environments.text import lucene
from alignopsd_trl.environments.text.lucene import terms, words
from alignopsd_trl.environments.text.porter import stem
from alignopsd_trl.environments.webshop.engine import reward
from alignopsd_trl.environments.webshop.engine.fuzzy import similar
from alignopsd_trl.environments.webshop.engine.goals import weighted_index
from alignopsd_trl.environments.webshop.engine.nouns import extractor, standin
from alignopsd_trl.environments.webshop.engine.tables import normalize_color

SHIRT = {"query": "shirts", "product_category": "Clothing › Men › Shirts", "name": "Plain Cotton Shirt"}


def goal(**changes: Any) -> dict[str, Any]:
    return {**SHIRT, "attributes": ["soft"], "goal_options": {"size": "m"}, "price_upper": 20.0, **changes}


@pytest.mark.parametrize(
    ("changes", "factor", "title"),
    [
        ({}, 1.0, 1.0),
        ({"query": "socks", "product_category": "Clothing", "name": "cotton wool red socks pair extra"}, 0.5, 1 / 6),
        ({"name": "one two three four five six seven eight nine ten shirt"}, 0.1, 1 / 11),
        ({"name": "wool socks"}, 0.0, 0.0),
        ({"name": "the of"}, 1.0, 0.2),
    ],
)
def test_type_reward(changes: dict[str, Any], factor: float, title: float) -> None:
    found = reward.type_match(SHIRT, goal(**changes), standin)
    assert (found.r_type, found.title_score) == (factor, title)


def test_attributes_are_looked_up_lazily_and_bullets_may_be_a_string() -> None:
    assert reward.attribute_matches({"Attributes": ["soft"]}, goal()) == 1
    texts = {"Attributes": [], "Title": "", "Description": "Very Soft"}
    assert reward.attribute_matches({**texts, "BulletPoints": "x"}, goal()) == 1
    assert reward.attribute_matches({**texts, "BulletPoints": []}, goal(attributes=["SOFT", "soft"])) == 1


@pytest.mark.parametrize(
    ("bought", "wanted", "found"),
    [
        (["sky blue"], ["navy blue"], 1),
        (["x-large"], ["large"], 1),
        (["standard"], [("fit type", "standard")], 0),
        (["navy blue"], [("color", "blue")], 1),
        (["blue"], [], 0),
        ([], ["blue"], 0),
    ],
)
def test_option_reward(bought: list[str], wanted: list[Any], found: int) -> None:
    assert reward.option_matches(bought, wanted) == found


def test_total_by_hand() -> None:
    bought = {**SHIRT, "Attributes": ["soft"], "Title": "", "BulletPoints": [], "Description": ""}
    assert reward.score(bought, goal(), 20.0, {"size": "m"}, standin)[0] == 1.0
    total, parts = reward.score(bought, goal(), 20.01, {"size": "l"}, standin)
    assert total == 1 / 3
    assert (parts["w_att"], parts["w_option"], parts["r_option"], parts["r_price"]) == (1 / 3, 1 / 3, 0.0, False)


def test_colours() -> None:
    assert [normalize_color(text) for text in ("deep navy blue", "standard", "plain")] == ["blue", "tan", "plain"]


def test_weighted_draws_of_the_original() -> None:
    draw = random.Random(24)
    weights = [draw.randint(0, 10) for _ in range(50)]
    cumulative = [0]
    for weight in weights:
        cumulative.append(cumulative[-1] + weight)
    assert [weighted_index(cumulative, draw) for _ in range(3)] == [44, 15, 36]


@given(st.text(alphabet="ab c-é1", max_size=12), st.text(alphabet="ab c-é1", max_size=12))
def test_the_quick_verdict_equals_the_measured_one(a: str, b: str) -> None:
    assert similar(a, b) == (measured(a, b) > 85)


def measured(a: str, b: str) -> int:
    """The token-set ratio of two texts of Latin letters, without any bound."""
    left, right = ({*re.sub(r"\W", " ", text.replace("é", "")).split()} for text in (a, b))
    if not left or not right:
        return 0
    common, *rests = (" ".join(sorted(some)) for some in (left & right, left - right, right - left))
    sides = [common, *(f"{common} {rest}".strip() for rest in rests)]
    pairs = [pair for pair in combinations(sides, 2) if all(pair)]
    return max(int(round(100 * SequenceMatcher(None, *pair).ratio())) for pair in pairs)


def test_nothing_is_similar_to_nothing() -> None:
    assert not any(similar(a, b, threshold=0) for a, b in ((None, "a"), ("", ""), ("é", "é")))


def test_ratio_of_long_strings_keeps_the_junk_rule() -> None:
    a, b = "x" + "ab" * 120, "y" + "ab" * 130
    ratio = int(round(100 * SequenceMatcher(None, a, b).ratio()))
    assert similar(a, b, ratio - 1)
    assert not similar(a, b, ratio)


def test_nouns_from_a_table_or_a_function(tmp_path: Path) -> None:
    table = tmp_path / "nouns.json"
    table.write_text(json.dumps({"Red Shoe": ["shoe"]}))
    name, nouns = extractor(str(table))
    assert (name, nouns("Red Shoe")) == ("table:nouns.json", ("shoe",))
    with pytest.raises(KeyError, match="no nouns for the title 'Other'"):
        nouns("Other")
    assert extractor(lambda title: [title])[1]("x") == ("x",)
    assert standin("The 2-in-1 Men's T.V. 42") == ("2-in-1", "men's", "t.v")
    table.write_text("[]")
    with pytest.raises(ValueError, match="noun table"):
        extractor(str(table))


STEMS = """caresses caress ponies poni ties ti caress caress cats cat feed feed agreed agre plastered plaster bled bled
motoring motor sing sing conflated conflat troubled troubl sized size hopping hop tanned tan falling fall hissing hiss
fizzed fizz failing fail filing file happy happi sky sky relational relat conditional condit rational ration valenci
valenc digitizer digit conformabli conform radicalli radic differentli differ vileli vile analogousli analog
vietnamization vietnam predication predic operator oper feudalism feudal decisiveness decis hopefulness hope
callousness callous formaliti formal sensitiviti sensit sensibiliti sensibl triplicate triplic formative form formalize
formal electriciti electr electrical electr hopeful hope goodness good revival reviv allowance allow inference infer
airliner airlin adjustable adjust defensible defens irritant irrit replacement replac adjustment adjust dependent depend
adoption adopt communism commun activate activ angulariti angular homologous homolog effective effect bowdlerize bowdler
probate probat rate rate cease ceas controll control roll roll archaeologi archaeolog geologi geologi
possibli possibl by by é é""".split()


@pytest.mark.parametrize(("word", "wanted"), list(zip(STEMS[::2], STEMS[1::2], strict=True)))
def test_stems_of_the_published_examples(word: str, wanted: str) -> None:
    assert stem(word) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a.b o'neil 3.5 1,000 x_y a:b", ["a.b", "o'neil", "3.5", "1,000", "x_y", "a:b"]),
        ("1:2 _ .a. b-c", ["1", "2", "a", "b", "c"]),
        ("日本ひカタ한국 สวัสดี", ["日", "本", "ひ", "カタ", "한국", "สวัสดี"]),
        ("½ ² ™ ★☕ 👍🏽 👩\u200d👧 🇩🇪🇫🇷", ["™", "★", "☕", "👍🏽", "👩\u200d👧", "🇩🇪", "🇫🇷"]),
        ("a\u00adb e\u0301t ａｂ", ["a\u00adb", "e\u0301t", "ａｂ"]),
        ("x" * 300, ["x" * 255, "x" * 45]),
        ("é" * 300 + ".", ["é" * 255, "é" * 45]),
    ],
)  # fmt: skip
def test_words(text: str, wanted: list[str]) -> None:
    assert list(words(text)) == wanted


@given(st.lists(st.sampled_from(["ab", "é.", " ", "½", "_", "1,", "日", "🇩🇪", "x" * 200, "-" * 300, "'"]), max_size=40))
def test_windows_do_not_split_words(parts: list[str]) -> None:
    whole = [match[1] for match in lucene._WORDS.finditer("".join(parts)) if match[1]]
    if all(len(word) <= 255 for word in whole):
        assert list(words("".join(parts))) == whole


def test_terms_lose_possessives_and_stop_words() -> None:
    assert terms("The Woman’s Running shoes' it's") == ["woman", "run", "shoe"]


@given(st.text(alphabet="ab1_.',;: -", max_size=14))
def test_the_quick_pattern_for_ascii_agrees_with_the_full_one(text: str) -> None:
    assert list(words(text)) == list(words(text + " é"))[:-1]
