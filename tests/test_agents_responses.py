"""The Responses API: the same prompts as chat completions, typed events, and what it can't do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.agent_play import GUESS, START, called, exact, number_of, played
from fakes.tool_classes import chat_tokenizer

from alignopsd_trl.environments.adapters import AgentEnvironment

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


async def by_chat(row: Row, client: Client) -> float:
    messages: list[Any] = list(START)
    for _ in range(3):
        said = (await client.openai.chat.completions.create(model="policy", messages=messages, tools=[GUESS])).choices[
            0
        ]
        messages.append(said.message.model_dump(exclude_none=True))
        for one in said.message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": one.id, "content": told(one.function)})
    return 0.5


def thinking(text: str) -> str:
    number = number_of(text)
    return f"<think>\nPerhaps {number}.\n</think>\n\nI guess.{called(number)}{called(number + 1)}"


@pytest.mark.parametrize("history", ["window", "conversation"])
@pytest.mark.parametrize("say", [thinking, lambda text: called(number_of(text))], ids=["thinking", "calls"])
@pytest.mark.parametrize("agent", [by_items, by_previous, by_references])
def test_responses_and_chats_have_the_same_prompts(agent: Any, say: Any, history: str) -> None:
    turns = []
    for one in (agent, by_chat):
        log: list[Any] = []
        tokenizer = chat_tokenizer()
        found = played(
            AgentEnvironment(one), say=say, log=log, tokenizer=tokenizer, history=history, past_thinking="keep"
        )
        exact(found, log, tokenizer)
        assert all(one.reward == 0.5 for one in found), found[0].message
        turns.append(
            [[(turn.prompt_ids, turn.response_ids, turn.info["follows"]) for turn in one.turns] for one in found]
        )
    assert turns[0] == turns[1] and [one[2] for one in turns[0][0]] == [None, 0, 1]
