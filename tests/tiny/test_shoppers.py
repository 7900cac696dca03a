"""Scripted shoppers: what they read from a prompt, and how well they shop."""

from __future__ import annotations

import random
from functools import partial

import pytest

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.webshop.player import Row, ScriptedShopper, ShopPage, ShopRequest
from alignopsd_trl.skills import SkillBank
from assets.tiny_policies.curricula import guidance
from assets.tiny_policies.demonstrations import demonstrations, episode
from assets.tiny_policies.shoppers import play


def success(suite: Suite, care: float, episodes: int = 150) -> float:
    environment, rows, draw = suite.factory(), list(suite.tasks("train"))[:episodes], random.Random(0)
    shopper = ScriptedShopper(care, draw)
    return sum(episode(environment, row, lambda view: shopper.answer(view).text)[2] for row in rows) / episodes


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


def test_demonstrations_under_a_skill_are_the_careful_ones(suite: Suite):
    bank = SkillBank.load("webshop")
    episodes = [(suite.factory(), row) for row in list(suite.tasks("train"))[:60]]
    shown, again = (list(demonstrations(episodes, play, partial(guidance, bank), seed=1)) for _ in range(2))
    assert shown == again
    openings = [item for item in shown if "Actions so far" not in item.prompt]
    skilled = [item for item in openings if "Guidance" in item.prompt]
    plain = [item for item in openings if "Guidance" not in item.prompt]
    assert sum("looking for some" in item.response for item in skilled) < 0.3 * len(skilled)
    assert 0.2 * len(plain) < sum("looking for some" in item.response for item in plain) < 0.8 * len(plain)
