"""The word-level tokenizer: one token a word, nothing lost."""

from __future__ import annotations

import random

import pytest
from fakes.episodes import walk
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from alignopsd_trl.commands.own_task.warm_start.tiny import CLOSE, OPEN
from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.webshop.player import ScriptedShopper

TEXTS = (
    "user\n",
    "assistant\n",
    "Task: find me wool coat with size: large, and price lower than 40.00 dollars",
    "ShopPage: 'Back to Search' [SEP] 'size' [SEP] 'large' [SEP] 'Price: $22.5'",
    "<think>choosing size large</think><action>click[large]</action>",
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(SHIPPED_MODELS["tiny"], local_files_only=True)


def decoded(tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer(text)["input_ids"])


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS,
        "click[size large]",
        "search[wool coat  40.00]",
        "an unknown wörd, 漢字 ½ \n\n  1.2.3 a.5 5.a",
        "to back to search now",
        "click[< prev] click[next >]",
    ],
)
def test_round_trip(tokenizer, text: str):
    assert decoded(tokenizer, text) == text


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[OPEN, CLOSE]), max_size=60))
def test_round_trip_of_any_text(tokenizer, text: str):
    assert decoded(tokenizer, text) == text


def test_the_words_of_a_shop_are_known(suite: Suite, tokenizer):
    shopper, environment = ScriptedShopper(0.5, random.Random(3)), suite.factory()
    for row in suite.panel("test").rows[:40]:
        views, responses, _ = walk(environment, row, lambda view: shopper.answer(view).text)
        for text in (*map(environment.prompt.render, views), *responses):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.decode(ids) == text
            assert not any(token.startswith("<0x") for token in tokenizer.convert_ids_to_tokens(ids)), text
