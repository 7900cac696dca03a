"""The word-level tokenizer: one token a word, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.tiny_policies.curricula import CURRICULA
from assets.tiny_policies.tokenizer import CLOSE, OPEN, build_tokenizer

PHRASES = CURRICULA["webshop_tiny"].phrases
TEXTS = (
    "user\n",
    "assistant\n",
    "Task: find me wool coat with size: large, and price lower than 40.00 dollars",
    "Page: 'Back to Search' [SEP] 'size' [SEP] 'large' [SEP] 'Price: $22.5'",
    "<think>choosing size large</think><action>click[large]</action>",
)


TOKENIZER = build_tokenizer(TEXTS, 512, PHRASES)


def decoded(text: str) -> object:
    return TOKENIZER.decode(TOKENIZER(text)["input_ids"])


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
def test_round_trip(text: str):
    assert decoded(text) == text


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[OPEN, CLOSE]), max_size=60))
def test_round_trip_of_any_text(text: str):
    assert decoded(text) == text


def test_a_word_is_one_token_wherever_it_stands():
    (alone,) = TOKENIZER("large")["input_ids"]
    for text in ("size large", "click[large]", "'large'", "large, wool"):
        assert alone in TOKENIZER(text)["input_ids"], text
    assert len(TOKENIZER("22.5")["input_ids"]) == 1


def test_chat_template_and_special_tokens():
    chat = [{"role": "user", "content": "wool coat"}]
    text = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nwool coat<|im_end|>\n<|im_start|>assistant\n"
    ids = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "user\nwool coat\nassistant\n"
