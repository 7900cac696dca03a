"""An agent is heard before it gets 0: its last words, its asides, its refusals, and the programs that it runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from fakes.agent_play import HINT, ONE, START, played
from fakes.tool_classes import chat_tokenizer

from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.environments.adapters.agents import Refused
from alignopsd_trl.environments.base import Ending, Reply
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.runs.health import Tally
from alignopsd_trl.turns import StopReason

Row = Any
Client = Any
PROGRAM = """
import json, sys, urllib.error, urllib.request
messages, most = [{"role": "user", "content": "Guess."}], int(sys.argv[2])
for number in range(int(sys.argv[3])):
    body = json.dumps({"messages": messages, **json.loads(sys.argv[4])}).encode()
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/chat/completions", body)).read()
    except urllib.error.HTTPError as error:
        sys.exit(3)  # and says nothing
    messages = [{"role": "user", "content": "x" * most}]
"""


def running(client: Client, length: int = 1, turns: int = 99, asked: str = "{}", check: bool = True) -> Any:
    """Runs a program that asks over the socket, and ends with 3 once it is refused."""
    command = [sys.executable, "-c", PROGRAM, client.url, str(length), str(turns), asked]
    return subprocess.run(command, env={"PATH": os.environ["PATH"]}, check=check)


def test_an_agent_may_run_its_tests_after_the_turn_limit() -> None:
    def agent(row: Row, client: Client) -> float:
        running(client, check=False)
        time.sleep(1.0)  # its tests
        return 1.0

    found = played(AgentEnvironment(agent, format="text", max_turns=2))
    assert [(one.stop, one.reward, len(one.turns)) for one in found] == [(StopReason.TURN_LIMIT, 1.0, 2)] * 2


def test_an_agent_that_is_not_heard_in_time_fails_its_episode() -> None:
    def agent(row: Row, client: Client) -> float:
        try:
            while True:
                client.chat_sync(messages=START)
        except Refused:
            time.sleep(1.5 if row["task_id"] == "slow" else 0.0)
        return 1.0

    environment = AgentEnvironment(agent, format="text", max_turns=2, last_words=0.75)
    slow, quick = played(environment, [{"task_id": "slow"}, *ONE], siblings=1)
    assert slow.failed and "raise last_words" in slow.message and slow.reward == 0.0
    assert (quick.stop, quick.reward) == (StopReason.TURN_LIMIT, 1.0)


def test_an_ending_may_reward_turns_too() -> None:
    async def agent(row: Row, client: Client) -> Ending:
        await client.chat(messages=START)
        client.reward(0.5)
        await client.chat(messages=[*START, START[1]])
        return Ending(reward=1.0, turn_rewards={0: 0.25, 1: -1.0})

    assert played(AgentEnvironment(agent))[0].turn_rewards == [0.75, 0.0]


def test_last_words_are_a_number_of_seconds() -> None:
    for wrong in (0, -1, float("nan"), "5"):
        with pytest.raises(ValueError, match="last_words=.* must be"):
            AgentEnvironment(running, last_words=wrong)
    assert AgentEnvironment(running, last_words=2.0)().options["last_words"] == 2.0


def test_what_the_policy_did_is_its_own_though_a_program_ends_for_it() -> None:
    def agent(row: Row, client: Client) -> float:
        running(client, length=row["length"])
        return 1.0

    rows = [{"task_id": "long", "length": 900}, {"task_id": "turns", "length": 2}]
    found = played(AgentEnvironment(agent, format="text", max_turns=3), rows, siblings=1, max_prompt_length=300)
    assert [(one.stop, one.failed, one.reward, len(one.turns)) for one in found] == [
        (StopReason.PROMPT_TOO_LONG, False, 0.0, 1),
        (StopReason.TURN_LIMIT, False, 0.0, 3),
    ], [one.message for one in found]
    assert "returned non-zero exit status 3" in found[1].turns[-1].info["lost"]


def test_an_error_that_no_refusal_made_stays_the_agents_own() -> None:
    def agent(row: Row, client: Client) -> float:
        try:
            client.chat_sync(messages=[{"role": "user", "content": "x" * 900}])
        except Refused:
            pass
        client.chat_sync(messages=START)
        raise KeyError("broken")

    found = played(AgentEnvironment(agent, format="text"), siblings=1, max_prompt_length=300)
    assert found[0].failed and "KeyError: 'broken'" in found[0].message, found[0].message


def test_the_last_refusal_is_told() -> None:
    def by_program(row: Row, client: Client) -> float:
        running(client, asked='{"seed": 5}', check=row["task_id"] == "raises")
        return 1.0

    environment = AgentEnvironment(by_program, format="text")
    for one in played(environment, [{"task_id": "raises"}, {"task_id": "returns"}]):
        assert one.failed and "refused (unsupported_parameter): seed=5" in one.message, one.message

    def too_long(row: Row, client: Client) -> None:
        running(client, check=False)

    found = played(AgentEnvironment(too_long, format="text"), siblings=1, max_prompt_length=3)
    assert found[0].stop is StopReason.PROMPT_TOO_LONG and "max_prompt_length=3" in Tally.of(found).message


def test_refusals_are_counted_by_their_code() -> None:
    async def agent(row: Row, client: Client) -> float:
        for _ in range(2):
            with pytest.raises(Refused):
                await client.chat(messages=START, seed=5)
        await client.chat(messages=START)
        return 1.0

    batch = open_batch(AgentEnvironment(agent, format="text"), 2, 20.0)
    for _ in range(2):
        batch.reset(range(2), ONE * 2)
        batch.step(range(2), [Reply("1")] * 2)
        batch.finish(range(2))
    assert batch.metrics() == {"agents/refused/unsupported_parameter": 8.0}
    batch.close()


async def with_a_judge(row: Row, client: Client) -> float:
    judge = client.not_trained()
    for number in range(row["asides"]):
        text = f"Judge {number} of {time.monotonic_ns()}."
        await judge.chat(messages=[{"role": "user", "content": text}])
    await client.chat(messages=START)
    await client.chat(messages=[*START, {"role": "assistant", "content": "x"}, START[1]])
    return 1.0


def test_asides_are_no_openings_and_use_up_no_turns() -> None:
    tokenizer = chat_tokenizer()
    environment = AgentEnvironment(with_a_judge, format="text", max_turns=3)
    found = played(environment, [{"task_id": "one", "asides": 5}], tokenizer=tokenizer)
    assert [(one.stop, one.reward, len(one.turns)) for one in found] == [(StopReason.DONE, 1.0, 2)] * 2
    for one in found:
        assert one.task_text == START[1]["content"] and one.skill_text == HINT
        assert "Judge 4" in str(one.turns[0].info["not_trained"])
        assert HINT in tokenizer.decode(one.turns[0].privileged_ids)


def test_an_agent_of_asides_alone_says_so() -> None:
    async def agent(row: Row, client: Client) -> None:
        while True:
            await client.not_trained().chat(messages=START)

    found = played(AgentEnvironment(agent, format="text"), siblings=1)
    assert (found[0].stop, found[0].turns) == (StopReason.TURN_LIMIT, [])
    assert "without a turn to train on" in found[0].message


def alive(process: int) -> bool:
    try:
        os.waitpid(process, os.WNOHANG)
        os.kill(process, 0)
    except (ChildProcessError, ProcessLookupError):
        return False
    return True


SLEEPS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


@pytest.mark.parametrize("way", ["plain", "to_thread", "asyncio"])
def test_the_programs_of_an_agent_end_with_its_episode(way: str) -> None:
    started: list[int] = []
    command = [sys.executable, "-c", SLEEPS]

    def plain(row: Row, client: Client) -> None:
        client.chat_sync(messages=START)
        process = subprocess.Popen(command)
        started.append(process.pid)
        process.wait()

    async def to_thread(row: Row, client: Client) -> None:
        await client.chat(messages=START)
        await asyncio.to_thread(plain, row, client)

    async def by_asyncio(row: Row, client: Client) -> None:
        await client.chat(messages=START)
        process = await asyncio.create_subprocess_exec(*command)
        started.append(process.pid)
        await process.wait()

    agent = {"plain": plain, "to_thread": to_thread, "asyncio": by_asyncio}[way]
    found = played(AgentEnvironment(agent, format="text"), siblings=2, limit=1.0)
    assert all(one.failed and "neither asked nor ended" in one.message for one in found)
    until = time.monotonic() + 5
    while any(alive(one) for one in started) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(started) == 2 and not any(alive(one) for one in started)
