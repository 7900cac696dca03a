"""Prompts as texts, as messages and with tools: what reaches the chat template, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.toy import TEMPLATE, ToyPrompt, build_tokenizer

from alignopsd_trl.environments import Chat, Record, View
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer, text_of

TOOLS = "{% if tools %}<|im_start|>{% for tool in tools %}{{ tool['name'] }} {% endfor %}<|im_end|>\n{% endif %}"
VIEW = View("three", "zero", (), (Record(1, "one", "left", "zero"), Record(2, "zero", "up", "three")), 2)


class Messages(ToyPrompt):
    def render(self, view: View, skill: str = "") -> Any:
        return [{"role": "user", "content": super().render(view, skill)}]


class Dialogue(ToyPrompt):
    """A system prompt, and each shown turn as two messages."""

    def render(self, view: View, skill: str = "") -> Any:
        turns = [
            message
            for record in view.history
            for message in (
                {"role": "user", "content": record.observation},
                {"role": "assistant", "content": record.action},
            )
        ]
        return [{"role": "system", "content": f"seek {view.task_text} {skill}".strip()}, *turns, *_now(view)]


class Tools(Dialogue):
    def render(self, view: View, skill: str = "") -> Any:
        return Chat(super().render(view, skill), [{"name": view.observation}])


def _now(view: View) -> list[dict[str, str]]:
    return [{"role": "user", "content": view.observation}]


def _renderer(prompt: Any, max_length: int = 200, template: str = TEMPLATE) -> Renderer:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer, prompt, PlayOptions(max_length))


def _fed(renderer: Renderer, prompt: Any) -> Any:
    return build_tokenizer().decode(renderer.encode([prompt])[0])


def test_a_text_is_one_user_message() -> None:
    text, messages = _renderer(ToyPrompt()).show(VIEW, "skill"), _renderer(Messages()).show(VIEW, "skill")
    renderer = _renderer(ToyPrompt())
    assert renderer.encode([text, messages, text]) == [renderer.encode([text])[0]] * 3
    assert text_of(text) == text and text_of(messages) == "[user]\n" + text


def test_messages_keep_their_roles_and_the_policy_answers_last() -> None:
    renderer = _renderer(Dialogue())
    fed = _fed(renderer, renderer.show(VIEW, ""))
    assert fed.startswith("<|im_start|><unk>\nseek three<|im_end|>\n<|im_start|>user\none<|im_end|>\n")  # no "system"
    assert fed.endswith("assistant\nup<|im_end|>\n<|im_start|>user\nzero<|im_end|>\n<|im_start|>assistant\n")


def test_tools_reach_the_template_each_with_its_own_prompt() -> None:
    renderer = _renderer(Tools(), template=TOOLS + TEMPLATE)
    views = [View("three", number, (), (), 0) for number in ("one", "two", "one")]
    fed = [build_tokenizer().decode(ids) for ids in renderer.encode([renderer.show(view, "") for view in views])]
    assert [text.split(" ")[0] for text in fed] == ["<|im_start|>one", "<|im_start|>two", "<|im_start|>one"]
    assert "tools" not in _fed(_renderer(Dialogue(), template=TOOLS + TEMPLATE), "go")


def test_history_is_dropped_from_messages_too() -> None:
    whole = _renderer(Dialogue()).fit([VIEW], ["skill"])[0]
    cut = _renderer(Dialogue(), max_length=len(whole.ids) - 1).fit([VIEW], ["skill"])[0]
    assert len(whole.view.history) == 2 and len(cut.view.history) == 1 and cut.shown[1]["content"] == "zero"


def test_a_text_goes_to_the_tokenizer_once_until_too_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, inner, seen = _renderer(ToyPrompt()), Renderer._encode, []
    monkeypatch.setattr(Renderer, "_encode", lambda self, prompts: seen.extend(prompts) or inner(self, prompts))
    first = renderer.encode(["one", "two", "one"])
    first[0].append(0)  # what a caller does with it is not remembered
    again = renderer.encode(["two", "one"])
    assert seen == ["one", "two"] and again == [first[1], first[2]]
    monkeypatch.setattr("alignopsd_trl.rollout.renderer.MOST_HELD", 1)
    assert renderer.encode(["two", "three"])[0] == first[1] and seen == ["one", "two", "two", "three"]


@pytest.mark.parametrize("bad", [None, [], ["go"], Chat([]), 3, Chat("go")])
def test_what_is_no_prompt_is_named(bad: Any) -> None:
    class Bad(ToyPrompt):
        def render(self, view: View, skill: str = "") -> Any:
            return bad

    with pytest.raises(TypeError, match=r"Bad.render returned .*return a str, a list of messages like"):
        _renderer(Bad()).show(VIEW, "")


def test_calls_of_tools_show_in_the_text() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "move"}]}
    assert text_of([call]) == "[assistant]\n{'tool_calls': [{'name': 'move'}]}"
