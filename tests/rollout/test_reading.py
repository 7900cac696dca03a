"""Where a response thinks: as the template, the model's tags, or plain text before a call say."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.tool_classes import Counter, as_text, as_tool_calls, chat_tokenizer, messages
from transformers import PreTrainedTokenizerBase

from alignopsd_trl.environments.adapters.tools import schemas_of
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.turns import Thought

CALL = [("increment", {"step": 3})]


def read(tokenizer: PreTrainedTokenizerBase, response: str, **options: Any) -> Any:
    prompt = tokenizer.apply_chat_template(
        [messages("hi")], add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"][0]
    ids = [*tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return Reader(tokenizer, **options).read(prompt, ids, text, schemas_of([Counter().increment]))


def test_thinking_that_the_generation_prompt_opened_is_found() -> None:
    tokenizer = chat_tokenizer("qwen3_5_think")
    found = read(tokenizer, "Left first.</think><action>left</action>")
    assert found.thought == Thought("Left first.", "left") and found.text.startswith("<think>Left first.</think>")
    assert read(tokenizer, "Left, and no end").thought == Thought("", "")
    closed = chat_tokenizer("qwen3_5_nothink")
    assert read(closed, "Left first.</think><action>left</action>").thought == Thought("", "left")


def test_a_response_that_opens_its_thinking_itself_is_read_as_before() -> None:
    for template in ("qwen3_instruct_2507", "qwen3_5_think"):
        found = read(chat_tokenizer(template), "<think>a</think><action>b</action>")
        assert found.thought == Thought("a", "b") and found.text == "<think>a</think><action>b</action>"


@pytest.mark.parametrize("special", [False, True])
def test_other_tags_are_shown_to_environments_as_think_tags(special: bool) -> None:
    tokenizer = chat_tokenizer()
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    found = read(tokenizer, "[THINK]a[/THINK]<action>b</action>", tags=("[THINK]", "[/THINK]"))
    assert found.thought == Thought("a", "b") and found.text == "<think>a</think><action>b</action>"


@pytest.mark.parametrize(
    ("response", "thinking"),
    [
        (as_text("Three up. ", CALL), "Three up."),
        (as_text("Three up. ", CALL, "Well"), "Well"),
        (as_tool_calls("Three up.", CALL), "Three up."),
        ("The end.", ""),
    ],
)
def test_without_tags_the_text_before_the_call_is_the_thinking_where_environments_say_so(
    response: str, thinking: str
) -> None:
    tokenizer = chat_tokenizer()
    assert read(tokenizer, response, freely=True).thought.thinking == thinking
    assert read(tokenizer, response).thought.thinking == ("Well" if "<think>" in response else "")


@pytest.mark.parametrize("thinking", ["", "Three it is."])
def test_native_calls_are_read_by_the_tokenizers_own_parser(thinking: str) -> None:
    found = read(chat_tokenizer(), as_tool_calls("Up.", CALL, thinking), native=True)
    assert found.thought.thinking == (thinking or "Up.") and '"step": 3' in found.action
    assert found.thought.action == '{"name": "increment", "arguments": {"step": 3}}'
    broken = read(chat_tokenizer(), "<tool_call>{</tool_call>", native=True)
    assert broken.thought.action == "" and "tool_calls" not in broken.action


def test_native_calls_need_a_template_with_tools() -> None:
    plain = chat_tokenizer()
    plain.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(ValueError, match="needs a chat template that shows tools.*format='text'"):
        Reader(plain, native=True)
    unknown = chat_tokenizer()
    unknown.chat_template = "{# mine #}" + unknown.chat_template
    with pytest.raises(ValueError, match="neither the tokenizer nor TRL has a parser.*response_template"):
        Reader(unknown, native=True)
