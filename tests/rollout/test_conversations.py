"""Conversations: prompts that go on by the ids that were fed and sampled, and what happens where they can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.pieces import KINDS, tokenizer_of
from fakes.plays import play_with
from fakes.toy import TEMPLATE, Scripted, ToyEnvironment, ToyPrompt, build_tokenizer
from fakes.trainers import make_config, make_trainer

from alignopsd_trl.commands.measure.commands import run_measure
from alignopsd_trl.environments import Chat, Opening, Projection, Step, TextEnvironment, View
from alignopsd_trl.rollout.conversations import Conversation
from alignopsd_trl.rollout.metrics import conversation_metrics
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.turns import StopReason, Trajectory

THINKING = "<think>go left</think>\n<action>left</action>"
STRIPPING = TEMPLATE.replace(
    "{{ message['content'] }}",
    "{{ message['content'].split('</think>')[-1].strip() if message['role'] == 'assistant' else message['content'] }}",
)
OPENED = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}")
REWRITING = "{{ messages | length }}" + TEMPLATE


class Walk(TextEnvironment):
    """Numbers one after another."""

    prompt = ToyPrompt()
    max_turns = 6

    def reset(self, **columns: Any) -> Opening:
        self._place = 0
        return Opening("zero", "nine", ("left", "right"))

    def step(self, action: str) -> Step:
        self._place += 1
        return Step(("one", "two", "three", "four", "five", "six")[self._place - 1], admissible=("left", "right"))

    def project(self, response: str, admissible: Any = None) -> Projection:
        return Projection("left", True)


def _play(
    template: str = TEMPLATE,
    past_thinking: str = "template",
    response: str = THINKING,
    end: bool = True,
    max_length: int = 500,
    environment: type = Walk,
    skill: str = "",
    history: str = "conversation",
) -> tuple[Trajectory, Any]:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    sampled = tokenizer(response, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * end
    sampler = Scripted(lambda prompts: ([list(sampled) for _ in prompts], None))
    options = {"max_prompt_length": max_length, "history": history, "past_thinking": past_thinking}
    given: Any = options | {"skills": lambda *ignored: (skill, ("s",))}
    (played,) = play_with(sampler, environment, [{"task_id": "c"}], tokenizer, **given)
    return played, tokenizer


def _extends(played: Trajectory) -> list[bool]:
    return [two.extends(one) for one, two in zip(played.turns, played.turns[1:], strict=False)]


@pytest.mark.parametrize("past_thinking", ["template", "keep"])
def test_a_prompt_is_the_prompt_before_it_the_response_and_what_is_new(past_thinking: str) -> None:
    played, tokenizer = _play(past_thinking=past_thinking)
    assert len(played.turns) == 6 and all(_extends(played))
    first, second = played.turns[:2]
    new = tokenizer.decode(second.prompt_ids[len(first.prompt_ids) + len(first.response_ids) :])
    text = "one\n\n<unk> <unk>: <unk>left, right<unk>"  # the toy does not know all words
    assert new == f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert second.prompt_text == "one\n\nAdmissible actions: [left, right]"
    whole = [
        {"role": "user", "content": first.prompt_text},
        *(
            message
            for one, two in zip(played.turns, played.turns[1:], strict=False)
            for message in (
                {"role": "assistant", "content": one.response_text},
                {"role": "user", "content": two.prompt_text},
            )
        ),
    ]
    encoded = tokenizer.apply_chat_template(whole, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert played.turns[-1].prompt_ids == encoded, "what the template makes of the whole dialogue"
    assert conversation_metrics([played, Trajectory({}, "", "")]) == {
        "conversation/broken_prefixes": 0.0,
        "conversation/runs": 0.5,
    }


def test_sampled_ids_stay_where_the_text_would_give_others() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    renderer = Renderer(tokenizer, ToyPrompt(), PlayOptions(500, history="conversation"))
    dialogue = Conversation(renderer, "go", renderer.encode(["go"])[0])
    before, eos = list(dialogue.ids), tokenizer.eos_token_id
    sampled = [tokenizer.convert_tokens_to_ids("left"), eos, tokenizer.convert_tokens_to_ids("<unk>"), eos]
    dialogue.go_on(sampled, "one", [eos])
    assert dialogue.ids[: len(before) + 4] == before + sampled and dialogue.ids.count(eos) == 4


def test_a_response_without_an_end_is_ended_by_the_template() -> None:
    played, tokenizer = _play(end=False)
    first, second = played.turns[:2]
    assert first.truncated and all(_extends(played))
    assert second.prompt_ids[len(first.prompt_ids) + len(first.response_ids)] == tokenizer.eos_token_id


@pytest.mark.parametrize(("past_thinking", "goes_on"), [("template", False), ("keep", True)])
@pytest.mark.parametrize("template", [TEMPLATE, STRIPPING])
def test_past_thinking(template: str, past_thinking: str, goes_on: bool) -> None:
    goes_on = goes_on or (past_thinking == "template" and template == TEMPLATE)
    played, tokenizer = _play(template, past_thinking)
    assert _extends(played) == [goes_on] * 5
    last = tokenizer.decode(played.turns[-1].prompt_ids)
    assert last.count("<think>go left</think>") == (5 if goes_on else 0) and last.count("<action>left</action>") == 5
    runs = 1.0 if goes_on else 6.0
    assert conversation_metrics([played])["conversation/runs"] == runs
    for one, two in zip(played.turns, played.turns[1:], strict=False):
        assert two.prompt_ids[: len(one.prompt_ids)] == one.prompt_ids, "prompts still nest"


def test_thinking_that_the_generation_prompt_opened_is_kept() -> None:
    kept, tokenizer = _play(OPENED, "keep", response="go left</think><action>left</action>")
    assert all(_extends(kept)) and tokenizer.decode(kept.turns[-1].prompt_ids).count("</think>") == 5


@pytest.mark.parametrize("past_thinking", ["template", "keep"])
def test_a_template_that_rewrites_what_was_is_followed_and_counted(past_thinking: str) -> None:
    template = TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'] }}{{ messages | length }}")
    played, tokenizer = _play(template, past_thinking, response="left")
    assert (conversation_metrics([played])["conversation/broken_prefixes"] > 0) == (past_thinking == "template")
    rewritten, _ = _play(REWRITING, past_thinking, response="left")
    assert len(rewritten.turns) == 6


@pytest.mark.parametrize("past_thinking", ["template", "keep"])
def test_a_dialogue_that_is_too_long_loses_its_oldest_turns_half_at_a_time(past_thinking: str) -> None:
    whole, tokenizer = _play(past_thinking=past_thinking, skill="always pick the largest number")
    limit = len(whole.turns[3].privileged_ids) + 1
    played, _ = _play(past_thinking=past_thinking, skill="always pick the largest number", max_length=limit)
    assert [turn.prompt_ids for turn in played.turns[:4]] == [turn.prompt_ids for turn in whole.turns[:4]]
    assert [turn.history_shortened for turn in played.turns] == [False] * 4 + [True] * 2
    fifth = tokenizer.decode(played.turns[4].prompt_ids)
    assert fifth.startswith(tokenizer.decode(played.turns[0].prompt_ids)) and "four" in fifth and "one" not in fifth
    assert all(len(turn.privileged_ids) <= limit for turn in played.turns)
    assert _extends(played) == [True, True, True, False, True]


def test_a_dialogue_whose_last_turn_does_not_fit_ends() -> None:
    whole, _ = _play()
    played, _ = _play(max_length=len(whole.turns[0].prompt_ids))
    assert played.stop is StopReason.PROMPT_TOO_LONG and len(played.turns) == 1


def test_the_privileged_dialogue_differs_by_the_skill_alone() -> None:
    played, tokenizer = _play(skill="always pick the largest number")
    for turn in played.turns:
        text = tokenizer.decode(turn.privileged_ids)
        assert text.replace("always pick the largest number\n", "") == tokenizer.decode(turn.prompt_ids) != text


def test_an_environment_says_how_its_replies_look() -> None:
    class Prompt(ToyPrompt):
        def render(self, view: View, skill: str = "") -> Any:
            return Chat([{"role": "user", "content": "go"}], [{"name": "move"}])

        def reply(self, view: View) -> Any:
            assert len(view.history) == 1 and view.history[0].result == view.observation
            return [{"role": "user", "content": f"at {view.observation}"}, {"role": "user", "content": "go"}]

    class Own(Walk):
        prompt = Prompt()

    played, tokenizer = _play(environment=Own)
    assert "<|im_start|>user\nat one<|im_end|>\n<|im_start|>user\ngo<|im_end|>" in tokenizer.decode(
        played.turns[1].prompt_ids
    )
    Prompt.reply = lambda self, view: None
    with pytest.raises(TypeError, match="Prompt.reply returned None"):
        _play(environment=Own)


def test_a_window_is_as_it_was() -> None:
    played, tokenizer = _play(history="window")
    for turn in played.turns:
        chat = [{"role": "user", "content": turn.prompt_text}]
        encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert turn.prompt_ids == encoded and not turn.prompt_text.count("history") > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history": "all"}, "history='all': choose one of 'window', 'conversation'"),
        ({"past_thinking": "no"}, "past_thinking='no': choose one of 'template', 'keep'"),
        ({"loss_type": "vespo"}, "merge_rows=True would change what loss_type='vespo' sums over"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level='sequence'.*set merge_rows=False"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold=0.5"),
    ],
)
def test_what_does_not_go_together_is_named(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(tmp_path, **{"history": "conversation", **options})


def test_walks_need_a_window(tmp_path: Path) -> None:
    flags = ["--model", "tiny", "--environment", "webshop_tiny", "--output", str(tmp_path / "out")]
    with pytest.raises(ValueError, match="rollouts replay actions"):
        run_measure([*flags, "--set", "history=conversation"])
    with pytest.raises(ValueError, match="monte_carlo.*replays actions"):
        make_trainer(tmp_path, factory=ToyEnvironment, method="monte_carlo", history="conversation")


@pytest.mark.parametrize("past_thinking", ["template", "keep"])
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dialogue_is_tokenised_as_the_template_tokenises_it_whole(kind: str, ended: bool, past_thinking: str) -> None:
    tokenizer = tokenizer_of(kind)
    options = PlayOptions(500, history="conversation", past_thinking=past_thinking)
    renderer, end = Renderer(tokenizer, ToyPrompt(), options), tokenizer.eos_token_id
    messages = [{"role": "user", "content": "you seek nine"}]
    talk = Conversation(renderer, list(messages), renderer.encode([messages])[0])
    for word in ("two", "three left"):
        messages += [{"role": "assistant", "content": "go left"}, {"role": "user", "content": word}]
        whole = renderer.encode([messages])[0]
        response = whole[len(talk.ids) : whole.index(end, len(talk.ids)) + ended]
        talk.go_on(response, word, [end])
        if renderer.decode(response).removesuffix("<|im_end|>") == "go left":
            assert talk.ids == whole
        else:
            assert kind.endswith("always") or kind in ("wordpiece", "prepending"), "others give the text back"
            talk = Conversation(renderer, list(messages), whole)
