"""The Responses API: the same prompts as chat completions, typed events, and what it can't do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.agent_play import GUESS, START, by_openai, exact, guessed, number_of, played
from fakes.sweeps import mostly_full
from fakes.tool_classes import as_tool_calls

from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.environments.adapters.agents.responses import messages_of

openai = pytest.importorskip("openai")
Row = Any
Client = Any
FLAT = {
    **{name: GUESS["function"][name] for name in ("parameters", "strict", "name", "description")},
    "type": "function",
}
ASKED: dict[str, Any] = {"model": "policy", "tools": [FLAT], "store": False, "include": ["reasoning.encrypted_content"]}


def told(call: Any) -> str:
    return f"not {json.loads(call.arguments)['number']}"


async def by_items(row: Row, client: Client) -> float:
    """Sends the whole past, as the Agents SDK does."""
    given: list[Any] = [START[1]]
    for _ in range(3):
        made = await client.openai.responses.create(input=given, instructions=START[0]["content"], **ASKED)
        given += [one.to_dict() for one in made.output]
        calls = [one for one in made.output if one.type == "function_call"]
        given += [{"type": "function_call_output", "call_id": one.call_id, "output": told(one)} for one in calls]
    return 0.5


async def by_previous(row: Row, client: Client) -> float:
    """Sends what is new."""
    given: Any = START[1]["content"]
    earlier: Any = openai.omit
    for _ in range(3):
        asked = {**ASKED, "store": None, "instructions": START[0]["content"], "previous_response_id": earlier}
        made = await client.openai.responses.create(input=given, **asked)
        calls, earlier = [one for one in made.output if one.type == "function_call"], made.id
        given = [{"type": "function_call_output", "call_id": one.call_id, "output": told(one)} for one in calls]
    assert (await client.openai.responses.retrieve(made.id)).id == made.id
    return 0.5


async def by_references(row: Row, client: Client) -> float:
    """Names what was said before, as Vercel's AI SDK does, and streams."""
    given: list[Any] = [{**START[0], "role": "developer"}, {"role": "user", "content": [text_block(START[1])]}]
    for _ in range(3):
        async with client.openai.responses.stream(input=given, model="policy", tools=[FLAT]) as stream:
            made = [event async for event in stream][-1].response
        for one in made.output:
            given.append({"type": "item_reference", "id": one.id})
            if one.type == "function_call":
                given.append({"type": "function_call_output", "call_id": one.call_id, "output": [text_block(one)]})
    return 0.5


def text_block(one: Any) -> dict[str, str]:
    return {"type": "input_text", "text": one["content"] if isinstance(one, dict) else told(one)}


def thinking(text: str) -> str:
    number = number_of(text)
    return f"<think>\nPerhaps {number}.\n</think>\n\nI guess.{guessed(number)}{guessed(number + 1)}"


@pytest.mark.parametrize("history", mostly_full(["conversation", "window"]))
@pytest.mark.parametrize("say", mostly_full([thinking, lambda text: guessed(number_of(text))]))
@pytest.mark.parametrize("agent", [by_items, by_previous, by_references])
def test_responses_and_chats_have_the_same_prompts(agent: Any, say: Any, history: str) -> None:
    turns = []
    for one in (agent, by_openai):
        found = exact(AgentEnvironment(one), say=say, history=history, past_thinking="keep")
        assert all(one.reward == 0.5 for one in found), found[0].message
        turns.append(
            [[(turn.prompt_ids, turn.response_ids, turn.info["follows"]) for turn in one.turns] for one in found]
        )
    assert turns[0] == turns[1] and [one[2] for one in turns[0][0]] == [None, 0, 1]


def test_messages_in_a_row_stay_apart_and_parts_of_one_come_together() -> None:
    said = [{"role": "assistant", "content": text} for text in ("One.", "Two.")]
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    call = {"type": "function_call", "name": "guess", "arguments": "{}"}
    calls = [{**call, "call_id": f"call_a_0_{number}"} for number in range(2)]
    output = {"type": "function_call_output", "call_id": "call_a_0_0", "output": "no"}
    found = messages_of([*said, thought, said[0], calls[0], output, calls[1], {**call, "call_id": "call_b_0_0"}], {})
    assert [one["role"] for one in found] == ["assistant", "assistant", "assistant", "tool", "assistant"]
    assert [one.get("content") for one in found[:3]] == ["One.", "Two.", "One."]
    assert found[2]["reasoning_content"] == "Hm." and len(found[2]["tool_calls"]) == 2


EVENTS = {
    "reasoning": [
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
    ],
    "message": [
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
    ],
    "function_call": [
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
    ],
}


def test_a_stream_has_the_apis_events_in_order() -> None:
    async def agent(row: Row, client: Client) -> float:
        asked = {"model": "policy", "input": START, "tools": [FLAT], "stream": True}
        found = [one async for one in await client.openai.responses.create(**asked)]
        assert all(not type(one).__name__.startswith("Base") for one in found)
        items = [one.type for one in found[-1].response.output]
        assert items == ["reasoning", "message", "function_call", "function_call"]
        wanted = ["created", "in_progress", *[event for one in items for event in EVENTS[one]], "completed"]
        assert [one.type for one in found] == [f"response.{one}" for one in wanted]
        assert [one.sequence_number for one in found] == [*range(len(found))]
        said = found[-1].response
        assert said.output_text == "".join(one.delta for one in found if one.type == "response.output_text.delta")
        assert said.usage.total_tokens == said.usage.input_tokens + said.usage.output_tokens > 0
        validated = openai.types.responses.Response.model_validate(said.to_dict(), strict=False)
        client.reward(0.25)
        client.reward(0.25, validated)
        return float(said.status == "completed")

    found = played(AgentEnvironment(agent), say=thinking)
    assert all(one.turns[0].reward == one.reward == 1.5 for one in found), found[0].message


def test_a_response_that_is_cut_is_incomplete_and_may_be_text_alone() -> None:
    async def agent(row: Row, client: Client) -> float:
        made = await client.openai.responses.create(model="policy", input="Say it.", max_output_tokens=2)
        assert (made.status, made.incomplete_details.reason, made.output_text) == (
            "incomplete",
            "max_output_tokens",
            "ab",
        )
        async with client.openai.responses.stream(model="policy", input="Say it.", max_output_tokens=2) as stream:
            assert [one async for one in stream][-1].type == "response.incomplete"
        return 1.0

    found = played(AgentEnvironment(agent, format="text"), say=lambda text: "abcdef")
    assert all(one.reward == 1.0 for one in found), found[0].message


REFUSED = {
    "tools[0].type": {"tools": [{"type": "web_search"}]},
    "tools[0].name": {"tools": [{"type": "function", "parameters": {}}]},
    "background": {"background": True},
    "conversation": {"conversation": "conv_1"},
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "previous_response_id": {"previous_response_id": "resp_of_another"},
    "input": {"input": []},
    "input[0].role": {"input": [{"role": "wizard", "content": "Hocus"}]},
    "input[0].id": {"input": [{"type": "item_reference", "id": "msg_of_another"}]},
    "input[1].output": {"input": [START[1], {"type": "function_call_output", "call_id": "call_1"}]},
    "input[0]": {"input": [{"type": "computer_call", "call_id": "1"}]},
    "messages[0].content": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
    "max_output_tokens": {"max_output_tokens": -3},
    "temperature": {"temperature": "warm"},
    "logprobs": {"include": ["message.output_text.logprobs"]},
    "tool_choice": {"tool_choice": {"type": "function", "name": "fly"}},
}


def test_what_cannot_be_served_gets_the_apis_error() -> None:
    async def agent(row: Row, client: Client) -> float:
        for place, asked in REFUSED.items():
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
                await client.openai.responses.create(**{"model": "policy", "input": "Guess."} | asked)
            error: Any = caught.value
            assert error.param == place and error.code, (place, error)
        unsaved = await client.openai.responses.create(model="policy", input="Guess.", store=False)
        with pytest.raises(openai.BadRequestError, match="no stored response"):
            await client.openai.responses.create(model="policy", input="Go on.", previous_response_id=unsaved.id)
        return 1.0

    found = played(AgentEnvironment(agent), siblings=1)
    assert found[0].reward == 1.0 and len(found[0].turns) == 1, found[0].message


SPACE = {"type": "namespace", "name": "games", "description": "Games.", "tools": [FLAT]}


def test_functions_of_namespaces_are_called_by_both_names() -> None:
    async def agent(row: Row, client: Client) -> float:
        given: list[Any] = [{"role": "user", "content": "Guess."}]
        for _ in range(2):
            asked = {"model": "policy", "input": given, "tools": [SPACE]}
            made = await client.openai.responses.create(**asked)
            (call,) = [one.to_dict() for one in made.output]
            assert (call["namespace"], call["name"]) == ("games", "guess")
            given += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "not it"}]
        return 1.0

    say = lambda prompt: as_tool_calls("", [("games.guess", {"number": 3})])  # noqa: E731
    (one,) = played(AgentEnvironment(agent), say=say, siblings=1, history="conversation")
    assert one.reward == 1.0 and one.turns[1].info["follows"] == 0, one.message


def test_tools_of_a_host_are_refused_or_left_out() -> None:
    async def agent(row: Row, client: Client) -> float:
        asked = {"model": "policy", "input": "Guess.", "tools": [FLAT, {"type": "web_search"}]}
        await client.openai.responses.create(**asked)
        return 1.0

    (one,) = played(AgentEnvironment(agent), siblings=1)
    assert one.failed and 'web_search = "disabled"' in one.message and "sampling='ignore'" in one.message
    (one,) = played(AgentEnvironment(agent, sampling="ignore"), siblings=1)
    assert one.reward == 1.0, one.message
