"""Anthropic's Messages API: the same prompts as chat completions, and what its clients need."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from fakes.agent_play import GUESS, HINT, START, called, exact, guessed, played
from fakes.tool_classes import as_tool_calls

from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.environments.adapters.agents import Client
from alignopsd_trl.turns import StopReason

Row = dict[str, Any]
TOOL = {"name": "guess", "description": "Guess.", "input_schema": GUESS["function"]["parameters"]}
SYSTEM = [{"type": "text", "text": START[0]["content"], "cache_control": {"type": "ephemeral"}}]
FIRST = {"role": "user", "content": [{"type": "text", "text": START[1]["content"]}]}
ASKED: Row = {"model": "policy", "max_tokens": 400, "system": SYSTEM, "tools": [TOOL]}


def send(client: Client, path: str = "/messages?beta=true", **body: Any) -> tuple[int, Any]:
    """Sends a request as Anthropic's clients do; returns the status, and the body or the events of a stream."""
    headers = {"x-api-key": client.key, "anthropic-version": "2023-06-01", "content-type": "application/json"}
    url = client.url.replace(f"/{client.key}", "") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            data = answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    if not body.get("stream"):
        return 200, json.loads(data)
    pairs = [block.split("\n") for block in data.strip().split("\n\n")]
    events = [json.loads(line.removeprefix("data: ")) for _, line in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [one["type"] for one in events]
    return 200, events


def results(said: Row, text: str = "not it") -> list[Row]:
    uses = [one for one in said["content"] if one["type"] == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": one["id"], "content": text, "is_error": True} for one in uses]


def by_messages(row: Row, client: Client) -> float:
    messages = [FIRST]
    for _ in range(3):
        _, said = send(client, messages=messages, **ASKED)
        messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": results(said)}]
    return 0.5


def by_chat(row: Row, client: Client) -> float:
    messages = [*START]
    for _ in range(3):
        said = client.chat_sync(messages=messages, tools=[GUESS])["choices"][0]["message"]
        calls = said.get("tool_calls") or ()
        told = [{"role": "tool", "tool_call_id": one["id"], "content": "not it"} for one in calls]
        messages += [said, *(told or [{"role": "user", "content": ""}])]
    return 0.5


@pytest.mark.parametrize("history", ["window", "conversation"])
@pytest.mark.parametrize("thinking", ["", "Hm.\n Indeed "])
def test_messages_and_chats_have_the_same_prompts(thinking: str, history: str) -> None:
    def say(prompt: str) -> str:
        return as_tool_calls("Two:", [("guess", {"number": 3}), ("guess", {"number": 4})], thinking)

    given: Row = {
        "siblings": 1,
        "history": history,
        "past_thinking": "keep" if history == "conversation" else "template",
    }
    (one,), (other,) = (exact(AgentEnvironment(agent), say=say, **given) for agent in (by_messages, by_chat))
    assert not one.failed, one.message
    assert [turn.prompt_ids for turn in one.turns] == [turn.prompt_ids for turn in other.turns]
    assert [turn.info["follows"] for turn in one.turns] == [None, 0, 1]


def test_thinking_comes_back_by_its_signature() -> None:
    def agent(row: Row, client: Client) -> float:
        _, said = send(client, messages=[FIRST], **ASKED)
        thought, *others = said["content"]
        assert thought["type"] == "thinking" and thought["thinking"].strip() == "A long thought."
        short = [{**thought, "thinking": ""}, *others]
        go_on = {"role": "user", "content": "Go on."}
        send(client, messages=[FIRST, {"role": "assistant", "content": short}, go_on], **ASKED)
        forged = [{**thought, "signature": "forged!"}, *others]
        status, told = send(client, messages=[FIRST, {"role": "assistant", "content": forged}, go_on], **ASKED)
        assert status == 400 and "signature is not of this policy" in told["error"]["message"]
        return 1.0

    say = lambda prompt: as_tool_calls("Well.", [], "A long thought.")  # noqa: E731
    (one,) = exact(AgentEnvironment(agent), say=say, siblings=1, history="conversation", past_thinking="keep")
    assert one.reward == 1.0 and [turn.info["follows"] for turn in one.turns] == [None, 0], one.message


def test_a_stream_has_the_apis_events_in_order() -> None:
    def agent(row: Row, client: Client) -> float:
        _, found = send(client, messages=[FIRST], stream=True, **ASKED)
        kinds = [one["type"].removeprefix("content_block_") for one in found]
        block = ["start", "delta", "stop"]
        wanted = ["message_start", "start", "delta", "delta", "stop", *block, *block, "message_delta", "message_stop"]
        assert kinds == wanted
        deltas = [one["delta"] for one in found if one["type"] == "content_block_delta"]
        assert [one["type"] for one in deltas] == [
            "thinking_delta",
            "signature_delta",
            "text_delta",
            "input_json_delta",
        ]
        assert json.loads(deltas[-1]["partial_json"]) == {"number": 3}
        begun = [one["content_block"] for one in found if one["type"] == "content_block_start"]
        assert [one.get("input", one.get("text", one.get("thinking"))) for one in begun] == ["", "", {}]
        assert found[0]["message"]["content"] == [] and found[-2]["delta"]["stop_reason"] == "tool_use"
        assert found[-2]["usage"]["output_tokens"] > 0
        client.reward(0.25, found[0]["message"])
        return 1.0

    (one,) = played(
        AgentEnvironment(agent), say=lambda _: as_tool_calls("Go:", [("guess", {"number": 3})], "Hm."), siblings=1
    )
    assert one.reward == 1.25, one.message


def test_tokens_are_counted_by_the_policy_and_are_no_turn() -> None:
    def agent(row: Row, client: Client) -> float:
        given = {name: value for name, value in ASKED.items() if name != "max_tokens"}
        _, counted = send(client, "/messages/count_tokens?beta=true", messages=[FIRST], **given)
        _, said = send(client, messages=[FIRST], **ASKED)
        return float(counted == {"input_tokens": said["usage"]["input_tokens"]})

    (one,) = played(AgentEnvironment(agent), siblings=1)
    assert (one.reward, len(one.turns)) == (1.0, 1), one.message


def test_how_a_response_ended_is_told() -> None:
    def agent(row: Row, client: Client) -> float:
        plain = {"model": "policy", "messages": [FIRST]}
        _, stopped = send(client, max_tokens=100, stop_sequences=["#"], **plain)
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "#")
        assert stopped["content"] == [{"type": "text", "text": "One "}]
        _, cut = send(client, max_tokens=2, **plain)
        _, ended = send(client, max_tokens=100, **plain)
        assert (cut["stop_reason"], ended["stop_reason"], ended["stop_sequence"]) == ("max_tokens", "end_turn", None)
        return 1.0

    (one,) = played(AgentEnvironment(agent), say=lambda _: "One # two.", siblings=1)
    assert one.reward == 1.0, one.message


USE = {"type": "tool_use", "id": "toolu_1", "name": "guess", "input": {}}
REFUSED = [
    ({"max_tokens": None}, "max_tokens"),
    ({"n": 2}, "n is a field of chat completions alone"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking="),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management="),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        r"tools\[0\].*'web_search_20250305'.*sampling=",
    ),
    ({"messages": [FIRST, {"role": "assistant", "content": "It is"}]}, "responses can't be begun"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.*'image'"),
    ({"messages": [FIRST, {"role": "assistant", "content": [USE]}, FIRST]}, "has no result"),
    ({"top_k": 5}, "top_k=5"),
    ({"tool_choice": {"type": "tool", "name": "fly"}}, "no such function"),
]


@pytest.mark.parametrize("asked, told", REFUSED)
def test_what_cannot_be_served_gets_the_apis_error(asked: Row, told: str) -> None:
    def agent(row: Row, client: Client) -> float:
        status, found = send(client, **{"messages": [FIRST], **ASKED, **asked})
        assert (status, found["type"], found["error"]["type"]) == (400, "error", "invalid_request_error"), found
        send(client, messages=[FIRST], **ASKED)
        pytest.raises(ValueError, lambda: _raise(found["error"]["message"])).match(told)
        return 1.0

    (one,) = played(AgentEnvironment(agent), siblings=1)
    assert one.reward == 1.0, one.message


def _raise(message: str) -> None:
    raise ValueError(message)


def test_what_asks_for_nothing_is_no_reason_to_refuse() -> None:
    def agent(row: Row, client: Client) -> float:
        usual = {"thinking": {"type": "adaptive"}, "metadata": {"user_id": "x"}, "output_config": {}, "top_k": 0}
        usual["context_management"] = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
        system = {"role": "system", "content": "Late orders."}
        status, told = send(client, messages=[FIRST, system], tool_choice={"type": "auto"}, **ASKED, **usual)
        assert status == 200, told
        return 1.0

    (one,) = played(AgentEnvironment(agent), siblings=1)
    assert one.reward == 1.0, one.message


def test_a_call_that_a_message_cannot_hold_is_the_policys_fault() -> None:
    def agent(row: Row, client: Client) -> float:
        status, told = send(client, messages=[FIRST], **ASKED)
        assert status == 400 and "no JSON object" in told["error"]["message"]
        raise RuntimeError("the program gives up")

    (one,) = played(AgentEnvironment(agent), say=lambda _: called('"three"'), siblings=1)
    assert not one.failed and (one.reward, one.won, len(one.turns)) == (0.0, False, 1), one.message


def test_errors_of_the_server_have_the_apis_form() -> None:
    def agent(row: Row, client: Client) -> float:
        status, told = send(client, "/messages/batches", messages=[FIRST], **ASKED)
        assert (status, told["error"]["type"]) == (404, "not_found_error") and client.key not in str(told)
        send(client, messages=[FIRST], **ASKED)
        return 1.0

    assert played(AgentEnvironment(agent), siblings=1)[0].reward == 1.0


def test_a_prompt_that_is_too_long_ends_the_episode_as_such() -> None:
    def agent(row: Row, client: Client) -> float:
        status, told = send(client, messages=[{**FIRST, "content": "x" * 900}], **ASKED)
        assert status == 400 and "max_prompt_length=600" in told["error"]["message"]
        return 0.0

    (one,) = played(AgentEnvironment(agent), siblings=1, max_prompt_length=600)
    assert one.stop is StopReason.PROMPT_TOO_LONG, one.message


# Which requests are trained


def titled(row: Row, client: Client) -> float:
    title = {"model": row["model"], "max_tokens": 9, "messages": [{"role": "user", "content": "A title!"}]}
    send(client, **title)
    _, said = send(client, messages=[FIRST], **ASKED)
    send(client, **title)
    go_on = {"role": "user", "content": results(said)}
    send(client, messages=[FIRST, {"role": "assistant", "content": said["content"]}, go_on], **ASKED)
    return 1.0


@pytest.mark.parametrize(
    "model, trains", [("policy-aside", lambda request: True), ("policy", lambda request: "tools" in request)]
)
def test_titles_are_no_turns_where_somebody_says_so(model: str, trains: Any) -> None:
    environment = AgentEnvironment(titled, trains=trains, max_turns=2)
    found = played(environment, [{"task_id": "one", "model": model}], say=lambda _: guessed(3), history="conversation")
    for one in found:
        assert (len(one.turns), one.reward, one.skill_text) == (2, 1.0, HINT), one.message
        assert one.task_text == START[1]["content"] and one.turns[1].info["follows"] == 0
        assert [len(turn.info.get("not_trained", ())) for turn in one.turns] == [1, 1]


def test_a_trains_that_fails_says_so() -> None:
    with pytest.raises(TypeError, match="trains=|trains is 'x'"):
        AgentEnvironment(titled, trains="x")
    for wrong, told in ((lambda request: None, "returned None"), (lambda request: 1 // 0, "ZeroDivisionError")):
        (one,) = played(AgentEnvironment(titled, trains=wrong), [{"task_id": "one", "model": "policy"}], siblings=1)
        assert one.failed and told in one.message, one.message
