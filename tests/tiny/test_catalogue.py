"""The embedded catalogue keeps its promises, and its goals can be reached."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from math import prod

CATALOGUE = files("alignopsd_trl.environments.webshop") / "catalogue"


def read(name: str):
    return json.loads((CATALOGUE / name).read_text(encoding="utf-8"))


def test_size_and_shape():
    items, requests = read("items_shuffle.json"), read("items_ins_v2.json")
    assert len(items) >= 500
    assert set(Counter(item["category"] for item in items)) == {
        "fashion",
        "beauty",
        "grocery",
        "electronics",
        "garden",
    }
    assert {item["asin"] for item in items} == set(requests)
    assert all(len(item["asin"]) == 10 and item["asin"] == item["asin"].upper() for item in items)
    assert all(4 <= len(item["name"].split()) <= 8 for item in items)
    goals = sum(prod(len(values) for values in item["customization_options"].values()) for item in items)
    assert 1500 <= goals <= 4000


def test_every_wish_is_true_of_its_product():
    requests = read("items_ins_v2.json")
    for item in read("items_shuffle.json"):
        text = " ".join([item["name"], *item["small_description"]]).lower()
        for wish in requests[item["asin"]]["instruction_attributes"]:
            assert wish in text, (item["asin"], wish)
            assert wish in requests[item["asin"]]["instruction"]


def test_features_that_tell_a_pair_apart_are_not_in_the_search_text():
    requests = read("items_ins_v2.json")
    for item in read("items_shuffle.json"):
        hidden = requests[item["asin"]]["attributes"][2]
        shown = " ".join([item["name"], item["full_description"], item["small_description"][0]])
        assert hidden not in shown
