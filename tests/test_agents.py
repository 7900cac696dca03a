"""Agents that own their loop: what the policy and the teacher read, what becomes a row, and whose fault is whose."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from fakes.agents import GUESS, HINT, ONE, START, called, number_of, played
from fakes.tool_classes import chat_tokenizer, trainer_of

from alignopsd_trl import read_records
from alignopsd_trl.environments import Ending
from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.environments.adapters.agents import Refused
from alignopsd_trl.rollout import SiblingsDiffer
from alignopsd_trl.training.turn_rows import Layout
from alignopsd_trl.turns import StopReason, Trajectory, TurnBatch

Row, Client = Any, Any


def text_of(completion: Any) -> str:
    return completion["choices"][0]["message"]["content"]


async def guessing(row: Row, client: Client, turns: int = 3) -> float:
    messages = list(START)
    for number in range(turns):
        said = text_of(await client.chat(messages=messages))
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"no {number}"}]
    return 1.0


def blocking(row: Row, client: Client) -> float:
    return float(text_of(client.chat_sync(messages=START)) != "")


async def by_openai(row: Row, client: Client) -> float:
    messages: list[Any] = list(START)
    for _ in range(3):
        asked = client.openai.chat.completions.create(model="policy", messages=messages, tools=[GUESS])
        said = (await asked).choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        for one in said.tool_calls or ():
            told = f"not {json.loads(one.function.arguments)['number']}"
            messages.append({"role": "tool", "tool_call_id": one.id, "content": told})
    return 0.5


async def by_url(row: Row, client: Client) -> float:
    from openai import AsyncOpenAI

    class Other:
        openai = AsyncOpenAI(api_key=client.key, base_url=client.url, max_retries=0)

    async with Other.openai:
        return await by_openai(row, Other)


def exact(trajectories: list[Trajectory], log: list[Any], tokenizer: Any) -> None:
    """All that was sampled is in the turns, and the teacher's prompt differs by the skill alone."""
    turns = [turn for one in trajectories for turn in one.turns]
    assert sorted(log) == sorted((tuple(one.prompt_ids), tuple(one.response_ids)) for one in turns)
    for turn in turns:
        privileged = tokenizer.decode(turn.privileged_ids)
        assert privileged.count(HINT) == 1 and privileged.replace(f"\n\n{HINT}", "") == tokenizer.decode(
            turn.prompt_ids
        )


@pytest.mark.parametrize("skill_in", ["system", "user"])
@pytest.mark.parametrize("agent", [guessing, blocking])
def test_a_chat_plays(agent: Any, skill_in: str) -> None:
    log: list[Any] = []
    tokenizer = chat_tokenizer()
    found = played(AgentEnvironment(agent, format="text", skill_in=skill_in), log=log, tokenizer=tokenizer)
    exact(found, log, tokenizer)
    assert all(one.stop is StopReason.DONE and one.reward == 1.0 and one.won is None for one in found), found


@pytest.mark.parametrize("agent", [by_openai, by_url])
def test_native_calls_come_as_openai_writes_them(agent: Any) -> None:
    pytest.importorskip("openai")
    log: list[Any] = []
    tokenizer = chat_tokenizer()
    found = played(AgentEnvironment(agent), say=lambda text: called(number_of(text)), log=log, tokenizer=tokenizer)
    exact(found, log, tokenizer)
    assert [len(one.turns) for one in found] == [3, 3] and all(one.reward == 0.5 for one in found), found
    assert "<tool_response>\nnot" in tokenizer.decode(found[0].turns[2].prompt_ids)


def rows_of(trajectories: list[Trajectory]) -> Layout:
    return Layout.of(TurnBatch.of(trajectories, 0), merge=True)


@pytest.mark.parametrize("agent", [guessing, by_openai])
def test_a_conversation_goes_on_by_ids(agent: Any) -> None:
    log: list[Any] = []
    tokenizer = chat_tokenizer()
    native = agent is by_openai
    environment = AgentEnvironment(agent, format="native" if native else "text")
    say = (lambda text: called(number_of(text))) if native else None
    found = played(environment, say=say, log=log, tokenizer=tokenizer, history="conversation", past_thinking="keep")
    exact(found, log, tokenizer)
    assert len(rows_of(found)) == 2
    assert [turn.info["follows"] for turn in found[0].turns] == [None, 0, 1]


async def in_parallel(row: Row, client: Client) -> float:
    async def sub_agent(name: str) -> None:
        messages = [{"role": "system", "content": f"You are {name}."}, START[1]]
        for number in range(2):
            said = text_of(await client.chat(messages=messages))
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"no {number}"}]

    await asyncio.gather(*map(sub_agent, "abc"))
    return 1.0


async def compacting(row: Row, client: Client) -> float:
    messages = list(START)
    for number in range(5):
        said = text_of(await client.chat(messages=messages))
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"turn {number}"}]
        if number == 2:
            messages = [START[0], {"role": "user", "content": "Three guesses so far."}]
    return 1.0


@pytest.mark.parametrize("history", ["window", "conversation"])
def test_dialogues_of_sub_agents_run_side_by_side(history: str) -> None:
    log: list[Any] = []
    tokenizer = chat_tokenizer()
    found = played(AgentEnvironment(in_parallel, format="text"), log=log, tokenizer=tokenizer, history=history)
    exact(found, log, tokenizer)
    assert [len(one.turns) for one in found] == [6, 6]
    if history == "conversation":
        assert len(rows_of(found)) == 6


def test_the_policy_never_reads_what_its_agent_dropped() -> None:
    log: list[Any] = []
    tokenizer = chat_tokenizer()
    found = played(AgentEnvironment(compacting, format="text"), log=log, tokenizer=tokenizer, history="conversation")
    exact(found, log, tokenizer)
    later = tokenizer.decode(found[0].turns[3].prompt_ids)
    assert "turn 0" not in later and "Three guesses" in later and len(rows_of(found)) == 4


@pytest.mark.parametrize("history", ["window", "conversation"])
def test_a_chat_trains(chat_policy: Any, tmp_path: Path, history: str) -> None:
    async def agent(row: Row, client: Client) -> float:
        await guessing(row, client, 2)
        return float(number_of(str(time.monotonic_ns())))

    rows = Dataset.from_list([{"task_id": f"g{n}"} for n in range(2)])
    environment = AgentEnvironment(agent, format="text")
    parts = {"environment_factory": environment, "train_dataset": rows, "method": "align_opsd", "history": history}
    trainer = trainer_of(chat_policy, tmp_path / "run", skip_zero_advantage=False, max_completion_length=8, **parts)
    before = [value.clone() for value in trainer.model.parameters()]
    trainer.train()
    turns = read_records(tmp_path / "run" / "trajectories")
    assert len(turns) == 8 and turns.message.eq("").all()
    assert any((value != old).any() for value, old in zip(trainer.model.parameters(), before, strict=True))
