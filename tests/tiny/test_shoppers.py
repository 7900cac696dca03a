"""Scripted shoppers: what they read from a prompt, and how well they shop."""

from __future__ import annotations

import random

import pytest
from fakes.episodes import walk

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.webshop.player import Row, ScriptedShopper, ShopPage, ShopRequest


def success(suite: Suite, care: float, episodes: int = 150) -> float:
    environment, rows, draw = suite.factory(), list(suite.tasks("train"))[:episodes], random.Random(0)
    shopper = ScriptedShopper(care, draw)
    return sum(walk(environment, row, lambda view: shopper.answer(view).text)[2] for row in rows) / episodes


def test_a_request_is_read_as_a_checklist():
    request = ShopRequest.read(
        "looking for tea, organic, cold brew that is fair trade with flavor: apple, and pack: single, and price lower "
        "than 40.00 dollars"
    )
    assert request == ShopRequest(
        "tea", ("tea", "organic", "cold", "brew"), "fair trade", {"flavor": "apple", "pack": "single"}, 40.0
    )
    assert ShopRequest.read("find me velvet hand made rug") == ShopRequest(
        "rug", ("velvet", "hand", "made", "rug"), "", {}, float("inf")
    )


def test_a_foreign_request_is_refused():
    with pytest.raises(ValueError, match="not a request"):
        ShopRequest.read("buy something nice")


def test_a_page_of_results_is_read_in_rows():
    page = ShopPage.read(
        "'Back to Search' [SEP] 'Page 1 (Total results: 2)' [SEP] 'Next >' [SEP] '1234567890' [SEP] 'Tarkin wool coat' "
        "[SEP] '$9.5 to $12.0' [SEP] '2234567890' [SEP] 'Norvia coat, wool' [SEP] '$96.0'"
    )
    assert page.kind == "results"
    assert page.rows == (Row("1234567890", "Tarkin wool coat", 9.5), Row("2234567890", "Norvia coat, wool", 96.0))
    request = ShopRequest.read("i need wool coat, and price lower than 50.00 dollars")
    assert [row.fits(request) for row in page.rows] == [True, False]


def test_care_pays(suite: Suite):
    careless, half, careful = (success(suite, care) for care in (0.0, 0.5, 1.0))
    assert careless < 0.1 < half < 0.6 < 0.99 <= careful
