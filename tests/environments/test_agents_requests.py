"""A request of an agent means what it says, or is refused by the name of its field."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fakes.agent_play import GUESS, START, asking, called, exact, guessed, played, text_of, written
from fakes.tool_classes import chat_tokenizer

from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.environments.adapters.agents import Client as InProcess
from alignopsd_trl.environments.adapters.agents import Refused
from alignopsd_trl.environments.adapters.agents.api import HttpCall, exchange
from alignopsd_trl.environments.adapters.agents.line import RequestLine
from alignopsd_trl.environments.adapters.agents.requests import Rules, asks_of
from alignopsd_trl.environments.adapters.rows import messages_of

Row = Any
Client = Any
RULES = Rules(native=True, ignores=False)
CALL = {"id": "a", "type": "function", "function": {"name": "guess", "arguments": '{"number": 3}'}}


def param_of(body: dict[str, Any], path: str = "chat/completions") -> tuple[int, str | None]:
    """Status and field of the refusal of a request."""
    line = RequestLine({}, RULES)
    answer = exchange(line, HttpCall("POST", f"/v1/{path}", {}, json.dumps(body).encode()))
    if not answer.done():
        return 200, None
    return answer.result().status, json.loads(answer.result().body)["error"]["param"]


REFUSED: dict[str, Any] = {
    **{"seed": 0, "top_k": 20, "min_p": 0.1, "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2},
    **{"repetition_penalty": 1.1, "presence_penalty": 1, "prediction": {"type": "content", "content": "1"}},
    **{"verbosity": "low", "modalities": ["text", "audio"], "audio": {"voice": "a"}, "web_search_options": {}},
    **{"functions": [{"name": "guess"}], "function_call": {"name": "guess"}, "guided_json": {}, "guided_regex": "a"},
    **{"structured_outputs": {"json": {}}, "add_generation_prompt": False, "continue_final_message": True},
    **{"documents": [], "chat_template": "{{ messages }}", "truncate_prompt_tokens": 5, "min_tokens": 3},
    **{"ignore_eos": True, "bad_words": ["a"], "stop_token_ids": [7], "best_of": 2, "echo": True, "wizardry": 1},
}
INERT: dict[str, Any] = {
    **{"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k"},
    **{"safety_identifier": "s", "seed": None, "wizardry": None, "top_k": -1, "min_p": 0.0, "logit_bias": {}},
    **{"presence_penalty": 0.0, "logprobs": False, "modalities": ["text"], "function_call": "auto", "functions": []},
    **{"repetition_penalty": 1.0, "verbosity": "medium", "add_generation_prompt": True, "stream": False},
    **{"background": False, "skip_special_tokens": True},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_would_change_prompt_or_sample_is_refused_by_name(name: str, caplog: Any) -> None:
    asked = {name: REFUSED[name]}
    assert param_of({"messages": START, **asked}) == (400, name)
    assert param_of({"input": "Guess.", **asked}, "responses") == (400, name)
    assert len(asks_of({"messages": START, **asked}, Rules(native=True, ignores=True))) == 1


def test_a_field_that_asks_for_nothing_is_answered() -> None:
    assert param_of({"messages": START, **INERT}) == param_of({"input": "Guess.", **INERT}, "responses") == (200, None)


def test_what_programs_send_is_answered() -> None:
    said = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
    flat = {"type": "function", "strict": False, **{name: GUESS["function"][name] for name in ("name", "parameters")}}
    responses = {
        **{"model": "policy", "instructions": "You play.", "input": [said, START[1]], "tools": [flat], "include": []},
        **{"tool_choice": "auto", "parallel_tool_calls": False, "reasoning": None, "store": False, "stream": True},
        **{"prompt_cache_key": "k", "client_metadata": {"a": "b"}, "text": {"verbosity": "medium"}},
    }
    assert param_of(responses, "responses") == (200, None)
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "tools": [GUESS], "tool_choice": "auto"}
    chat = {"model": "policy", "max_completion_tokens": 32, "temperature": 1, "top_p": 1, "store": False, "n": 1}
    assert param_of({"messages": START, **chat, **streamed}) == (200, None)


@pytest.mark.parametrize(
    "asked",
    [
        *(
            {"truncation": "auto"},
            {"max_tool_calls": 2},
            {"stop": "."},
            {"n": 2},
            {"messages": START},
            {"max_tokens": 5},
        ),
        *({"background": True}, {"prompt": {"id": "p"}}, {"conversation": "c"}, {"response_format": {"type": "text"}}),
    ],
)
def test_a_field_that_responses_can_not_honour_is_refused_by_name(asked: dict[str, Any]) -> None:
    assert param_of({"input": "Guess.", **asked}, "responses") == (400, next(iter(asked)))


def test_parts_of_a_response_request_reach_the_chat_that_says_the_same() -> None:
    assert param_of({"input": "Guess.", "text": {"verbosity": "low"}}, "responses") == (400, "verbosity")
    assert param_of({"input": "Guess.", "reasoning": {"mode": "pro"}}, "responses") == (400, "reasoning.mode")
    assert param_of({"input": "Guess.", "reasoning": {"effort": None, "summary": "auto"}}, "responses")[0] == 200


@pytest.mark.parametrize("history", ["window", "conversation"])
def test_variables_of_the_chat_template_are_in_every_prompt(history: str) -> None:
    async def agent(row: Row, client: Client) -> float:
        messages, asked = list(START), {"chat_template_kwargs": {"enable_thinking": False}}
        for _ in range(2):
            said = text_of(await client.chat(messages=messages, **asked))
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "no"}]
        await client.chat(messages=messages)
        await client.chat(messages=START, enable_thinking=False)
        return 1.0

    tokenizer = chat_tokenizer("qwen3")
    given: dict[str, Any] = {"tokenizer": tokenizer, "history": history, "past_thinking": "keep"}
    found = exact(AgentEnvironment(agent, format="text"), **given)
    shown = [tokenizer.decode(turn.prompt_ids).endswith("<think>\n\n</think>\n\n") for turn in found[0].turns]
    assert shown == [True, True, False, True]
    assert [turn.info["follows"] for turn in found[0].turns] == [None, 0, None, None]
    assert found[0].turns[0].prompt_ids == found[0].turns[3].prompt_ids
    if history == "conversation":
        assert found[0].turns[1].extends(found[0].turns[0])


@pytest.mark.parametrize(
    "asked", [{"reasoning_effort": "high"}, {"chat_template_kwargs": {"add_generation_prompt": False}}]
)
def test_a_variable_that_the_template_does_not_have_is_refused(asked: dict[str, Any]) -> None:
    agent, name = asking(asked), next(iter(asked.get("chat_template_kwargs", asked)))
    refused = played(AgentEnvironment(agent, format="text"), siblings=1)
    assert refused[0].failed and f"{name!r}" in refused[0].message, refused[0].message
    assert played(AgentEnvironment(agent, format="text", sampling="ignore"), siblings=1)[0].reward == 1.0


def dropping(template: str) -> str:
    assert 'message.role == "system" and not loop.first' in template
    return template.replace('message.role == "system" and not loop.first', 'message.role == "wizard"')


def failing(template: str) -> str:
    return "{% if messages[-1]['content'] == '2' %}{{ 1 / 0 }}{% endif %}" + template


BRIEF = {"messages": [*START, {"role": "system", "content": "Be brief."}, START[1]]}
NO_VARIABLES = ("content", "message", "loop", "messages", "tools", "add_generation_prompt", "")


@pytest.mark.parametrize(
    ("change", "asked", "told"),
    [
        (dropping, BRIEF, r"does not show the message of 'system', 'Be brief\.'"),
        (failing, {"messages": [{"role": "user", "content": "2"}]}, "the chat template refuses this request"),
        *((str, {"chat_template_kwargs": {name: []}}, f"never reads '{name}'") for name in NO_VARIABLES),
    ],
)
def test_what_the_template_can_not_show_is_refused(change: Any, asked: dict[str, Any], told: str) -> None:
    async def agent(row: Row, client: Client) -> float:
        await client.chat(messages=START)
        with pytest.raises(Refused, match=told):
            await client.chat(**{"messages": START} | asked)
        return 1.0

    tokenizer = chat_tokenizer("qwen3")
    tokenizer.chat_template = change(str(tokenizer.chat_template))
    found = played(AgentEnvironment(agent, format="text"), tokenizer=tokenizer)
    assert all(one.reward == 1.0 for one in found), found[0].message


TEMPLATES = ("qwen3_instruct_2507", "qwen3_5_think", "glm4moe", "gemma4", "nemotron_3_nano")


def past(arguments: Any, results: Any = None) -> list[dict[str, Any]]:
    call = {**CALL, "function": {"name": "guess", "arguments": arguments}}
    told = [{"role": "tool", "tool_call_id": "a", "content": "no"}] if results is None else results
    return [*START, {"role": "assistant", "content": None, "tool_calls": [call]}, *told]


@pytest.mark.parametrize("template", TEMPLATES)
def test_past_calls_are_shown_alike_under_every_template(template: str) -> None:
    shown = []
    for arguments in ("", " ", "{}", {}, None):
        (ask,) = asks_of({"messages": past(arguments)}, RULES)
        given = {"tools": [GUESS], "tokenize": False}
        shown.append(chat_tokenizer(template).apply_chat_template(ask.messages, **given))
    assert len(set(shown)) == 1


NO_OBJECTS: tuple[Any, ...] = ("[1]", "3", '"x"', "null", "true", "{", "number=3", [1], 3, '{"a": "\\ud800"}')
DEEP = tuple('{"a":' * levels + "1" + "}" * levels for levels in (100, 3000))


@pytest.mark.parametrize("arguments", NO_OBJECTS + DEEP)
def test_arguments_that_are_no_object_are_refused_by_their_place(arguments: Any) -> None:
    assert param_of({"messages": past(arguments)}) == (400, "messages[2].tool_calls[0].function.arguments")
    with pytest.raises(Refused, match=r"messages\[2\]\.tool_calls\[0\] has the arguments"):
        asks_of({"messages": past(arguments)}, RULES)


def agent_of_two_turns(handles: bool) -> Any:
    async def agent(row: Row, client: Client) -> float:
        first = await client.chat(messages=START, tools=[GUESS])
        said = first["choices"][0]["message"]
        told = [{"role": "tool", "tool_call_id": one["id"], "content": "no"} for one in said["tool_calls"]]
        try:
            await client.chat(messages=[*START, said, *told], tools=[GUESS])
        except Refused as error:
            assert error.code == "tool_use_failed"
            if not handles:
                raise
        return 1.0

    return agent


SURROGATE = '"\\ud800"'


@pytest.mark.parametrize(
    "call",
    ['{"name": "guess", "arguments": ""}', f'{{"name": {SURROGATE}, "arguments": {{{SURROGATE}: {SURROGATE}}}}}'],
)
def test_a_policy_that_writes_no_arguments_or_no_unicode_goes_on(call: str) -> None:
    found = exact(AgentEnvironment(agent_of_two_turns(False)), say=lambda text: written(call), history="conversation")
    assert [(one.reward, len(one.turns)) for one in found] == [(1.0, 2)] * 2, found[0].message


@pytest.mark.parametrize("arguments", ["[1]", '"abc"', '"\\ud800"', "3"])
def test_arguments_that_the_policy_spoilt_are_its_own_doing(arguments: str) -> None:
    given: Any = {"say": lambda text: called(arguments), "siblings": 1}
    lost = played(AgentEnvironment(agent_of_two_turns(False)), **given)[0]
    assert (lost.failed, lost.won, len(lost.turns)) == (False, False, 1), lost.message
    assert played(AgentEnvironment(agent_of_two_turns(True)), **given)[0].reward == 1.0


@pytest.mark.parametrize("levels", [100, 900, 3000])
def test_calls_of_many_levels_are_text(levels: int) -> None:
    async def agent(row: Row, client: Client) -> float:
        said = (await client.chat(messages=START, tools=[GUESS]))["choices"][0]["message"]
        await client.chat(messages=[*START, said, START[1]], tools=[GUESS])
        return float("tool_calls" not in said and "guess" in said["content"])

    options: Any = {"history": "conversation", "max_prompt_length": 20_000}
    found = exact(AgentEnvironment(agent), say=lambda text: called("[" * levels + "]" * levels), **options)
    assert [(one.reward, len(one.turns)) for one in found] == [(1.0, 2)] * 2, found[0].message


def result(name: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({} if name is None else {"tool_call_id": name})


BOTH = {"role": "assistant", "tool_calls": [{**CALL, "id": name} for name in "ab"]}


def test_results_are_shown_in_the_order_of_their_calls() -> None:
    results = [result("b", "cold"), result("a", "hot")]
    (ask,) = asks_of({"messages": [*START, BOTH, *results, BOTH, *results]}, RULES)
    assert [one["content"] for one in ask.messages if one["role"] == "tool"] == ["hot", "cold"] * 2
    bare = {"role": "assistant", "tool_calls": [{"function": CALL["function"]}] * 2}
    (ask,) = asks_of({"messages": [*START, bare, result(None, "1"), result(None, "2")]}, RULES)
    assert [one["content"] for one in ask.messages[-2:]] == ["1", "2"]


@pytest.mark.parametrize(
    "messages, place",
    [
        ([BOTH, result("a", "1"), result("c", "2")], "messages[4].tool_call_id"),
        ([BOTH, result("a", "1"), result("a", "2")], "messages[4].tool_call_id"),
        ([BOTH, result("a", "1"), result(None, "2")], "messages[4].tool_call_id"),
        ([BOTH, result("a", "1")], "messages[2].tool_calls[1]"),
        ([BOTH, START[1]], "messages[2].tool_calls[0]"),
        ([BOTH], "messages[2].tool_calls[0]"),
        ([result("a", "1")], "messages[2].tool_call_id"),
        ([{"role": "assistant", "tool_calls": [CALL, CALL]}, result("a", "1")], "messages[2].tool_calls[1].id"),
        ([{"role": "assistant", "refusal": "No."}], "messages[2].refusal"),
        ([{"role": "assistant", "function_call": {"name": "guess", "arguments": ""}}], "messages[2].function_call"),
        ([{"role": "assistant", "content": "1", "prefix": True}], "messages[2].prefix"),
        ([{"role": "user", "content": "1", "tool_calls": [CALL]}], "messages[2].tool_calls"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[2].content"),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], "messages[2].content"),
        ([{"role": "function", "name": "guess", "content": "1"}], "messages[2].role"),
    ],
)
def test_messages_that_can_not_be_shown_are_refused_by_their_place(messages: list[Any], place: str) -> None:
    assert param_of({"messages": [*START, *messages]}) == (400, place)


def test_of_two_tools_with_one_name_none_is_called() -> None:
    assert param_of({"messages": START, "tools": [GUESS, GUESS]}) == (400, "tools[1].function.name")


def item(name: str, output: str | None = None) -> dict[str, Any]:
    if output is None:
        return {"type": "function_call", "call_id": name, "name": "guess", "arguments": "{}"}
    return {"type": "function_call_output", "call_id": name, "output": output}


def test_outputs_of_responses_go_to_their_calls_wherever_they_stand() -> None:
    given = [START[1], item("a"), item("b"), START[1], item("b", "cold"), item("a", "hot")]
    line = RequestLine({}, RULES)
    exchange(line, HttpCall("POST", "/v1/responses", {}, json.dumps({"input": given}).encode()))
    assert line.take(time.monotonic() + 5) is not None and line.now is not None
    asked = START[1]["content"]
    assert [one["content"] for one in line.now.messages] == [asked, "", "hot", "cold", asked]


@pytest.mark.parametrize(
    "items", [[item("a"), item("b", "1")], [item("a")], [item("a"), item("a", "1"), item("a", "2")], [item("a", "1")]]
)
def test_outputs_of_responses_without_their_call_are_refused(items: list[Any]) -> None:
    status, place = param_of({"input": [START[1], *items]}, "responses")
    assert status == 400 and place is not None and place.startswith("messages[")


def test_a_stream_tells_each_call_as_openais_helper_reads_it() -> None:
    pytest.importorskip("openai")

    async def agent(row: Row, client: Client) -> float:
        asked = {"model": "policy", "messages": START, "tools": [GUESS]}
        async with client.openai.chat.completions.stream(**asked) as stream:
            events = [one async for one in stream]
            whole = await stream.get_final_completion()
        done = [one for one in events if one.type == "tool_calls.function.arguments.done"]
        calls = whole.choices[0].message.tool_calls or []
        assert [(one.index, one.arguments) for one in done] == [(0, '{"number": 4}'), (1, '{"number": 5}')]
        assert [one.function.arguments for one in calls] == [one.arguments for one in done]
        assert len({one.id for one in calls}) == 2 and whole.choices[0].finish_reason == "tool_calls"
        assert [one.content for one in events if one.type == "content.done"] in ([], ["I guess."])
        assert whole.usage is None
        chunks = [one async for one in await client.openai.chat.completions.create(**asked, stream=True, n=2)]
        ended = [choice for one in chunks for choice in one.choices if choice.finish_reason]
        assert [one.index for one in ended] == [0, 1] and all(one.usage is None for one in chunks)
        return 1.0

    found = played(AgentEnvironment(agent), say=lambda text: f"I guess.{guessed(4)}{guessed(5)}", siblings=1)
    assert found[0].reward == 1.0, found[0].message


def test_rows_say_nothing_by_what_arrow_fills_in() -> None:
    arguments = {"step": 1, "label": None, "list": [1, None, {"a": None, "b": 2}], "inner": {"c": None}}
    call = {"id": None, "type": "function", "function": {"name": "go", "arguments": arguments}}
    text = {"type": "function", "function": {"name": "go", "arguments": '{"label": null}'}}
    prompt = [
        {"role": "developer", "content": "Be brief.", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call, text]},
    ]
    system, assistant = messages_of({"prompt": prompt})
    assert system == {"role": "system", "content": "Be brief."}
    first, second = [one["function"]["arguments"] for one in assistant["tool_calls"]]
    assert first == {"step": 1, "list": [1, None, {"b": 2}], "inner": {}} and second == {"label": None}
    assert prompt[1]["tool_calls"][0]["function"]["arguments"] is arguments and "label" in arguments
    call["function"]["arguments"] = "[1]"
    with pytest.raises(ValueError, match="column 'prompt', message 1: a call has the arguments"):
        messages_of({"prompt": prompt})


def test_a_client_without_a_socket_refuses_alike() -> None:
    with pytest.raises(Refused) as caught:
        InProcess(RequestLine({}, RULES)).chat_sync(messages=START, seed=3)
    assert (caught.value.param, caught.value.status) == ("seed", 400)


def test_a_name_stays_a_name() -> None:
    (ask,) = asks_of({"messages": [{"role": "user", "content": "Hi.", "name": "Ann"}]}, RULES)
    assert ask.messages == [{"role": "user", "content": "Hi.", "name": "Ann"}]
