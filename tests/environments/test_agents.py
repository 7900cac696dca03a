"""Agents that own their loop: what the policy and the teacher read, what becomes a row, and whose fault is whose."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from fakes.agent_play import GUESS, HINT, ONE, START, asking, by_openai, exact, guessed, number_of, played, text_of
from fakes.playing import Seeded
from fakes.tool_classes import chat_model, chat_tokenizer, trainer_of

from alignopsd_trl import read_records
from alignopsd_trl.environments import Ending
from alignopsd_trl.environments.adapters import AgentEnvironment, Served
from alignopsd_trl.environments.adapters.agents import Refused
from alignopsd_trl.environments.base import Reply
from alignopsd_trl.rollout.episode import SiblingsDiffer
from alignopsd_trl.training.rewards import RewardError
from alignopsd_trl.training.turn_rows import Layout
from alignopsd_trl.turns import StopReason, Trajectory, Turn, TurnBatch

Row = Any
Client = Any


async def talk(client: Client, messages: list[Any], turns: int) -> None:
    for number in range(turns):
        said = text_of(await client.chat(messages=messages))
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": f"no {number}"}]


async def guessing(row: Row, client: Client, turns: int = 3) -> float:
    await talk(client, START, turns)
    return 1.0


def named(name: Any) -> list[dict[str, str]]:
    """What a sub-agent of this name begins with."""
    return [{"role": "system", "content": f"You are {name}."}, START[1]]


def blocking(row: Row, client: Client) -> float:
    return float(text_of(client.chat_sync(messages=START)) != "")


async def by_url(row: Row, client: Client) -> float:
    from openai import AsyncOpenAI

    class Other:
        openai = AsyncOpenAI(api_key=client.key, base_url=client.url, max_retries=0)

    async with Other.openai:
        return await by_openai(row, Other)


@pytest.mark.parametrize("skill_in", ["system", "user"])
@pytest.mark.parametrize("agent", [guessing, blocking])
def test_a_chat_plays(agent: Any, skill_in: str) -> None:
    found = exact(AgentEnvironment(agent, format="text", skill_in=skill_in))
    assert all(one.stop is StopReason.DONE and one.reward == 1.0 and one.won is None for one in found), found


@pytest.mark.parametrize("agent", [by_openai, by_url])
def test_native_calls_come_as_openai_writes_them(agent: Any) -> None:
    pytest.importorskip("openai")
    tokenizer = chat_tokenizer()
    found = exact(AgentEnvironment(agent), say=lambda text: guessed(number_of(text)), tokenizer=tokenizer)
    assert [len(one.turns) for one in found] == [3, 3] and all(one.reward == 0.5 for one in found), found
    assert "<tool_response>\nnot" in tokenizer.decode(found[0].turns[2].prompt_ids)


@pytest.mark.parametrize("synchronous", [False, True])
def test_the_client_of_a_served_policy_is_used_alike(synchronous: bool) -> None:
    pytest.importorskip("openai")

    async def agent(row: Row, client: Client) -> float:
        served = Served(client.url, key=client.key, max_tokens=1)
        if synchronous:
            said = [await asyncio.to_thread(served.not_trained().chat_sync, messages=START)]
            create = served.openai_sync.chat.completions.create
            said.append((await asyncio.to_thread(create, model="policy", messages=START)).model_dump())
        else:
            said = [await served.chat(messages=START)]
            said.append((await served.openai.chat.completions.create(model="policy", messages=START)).model_dump())
        return float([text_of(one) for one in said] == ["1", "12"])

    assert all(one.reward == 1.0 for one in played(AgentEnvironment(agent, format="text"), say=lambda text: "12"))


def rows_of(trajectories: list[Trajectory]) -> Layout:
    return Layout.of(TurnBatch.of(trajectories, 0), merge=True)


@pytest.mark.parametrize("agent", [guessing, by_openai])
def test_a_conversation_goes_on_by_ids(agent: Any) -> None:
    if agent is by_openai:
        pytest.importorskip("openai")
    native = agent is by_openai
    environment = AgentEnvironment(agent, format="native" if native else "text")
    say = (lambda text: guessed(number_of(text))) if native else None
    found = exact(environment, say=say, history="conversation", past_thinking="keep")
    assert len(rows_of(found)) == 2
    assert [turn.info["follows"] for turn in found[0].turns] == [None, 0, 1]


async def in_parallel(row: Row, client: Client) -> float:
    await asyncio.gather(*(talk(client, named(name), 2) for name in "abc"))
    return 1.0


async def compacting(row: Row, client: Client) -> float:
    await talk(client, START, 3)
    await talk(client, [START[0], {"role": "user", "content": "Three guesses so far."}], 2)
    return 1.0


@pytest.mark.parametrize("history", ["window", "conversation"])
def test_dialogues_of_sub_agents_run_side_by_side(history: str) -> None:
    found = exact(AgentEnvironment(in_parallel, format="text"), history=history)
    assert [len(one.turns) for one in found] == [6, 6]
    if history == "conversation":
        assert len(rows_of(found)) == 6


def test_seeds_come_from_a_requests_place_and_not_from_its_arrival() -> None:
    async def agent(row: Row, client: Client) -> float:
        await client.chat(messages=START)
        await asyncio.gather(*(client.chat(messages=named(name)) for name in next(orders)))
        return 1.0

    tokenizer = chat_tokenizer()
    model, found = chat_model(tokenizer).eval(), []
    for order in ("abc", "cab"):
        orders = iter([order] * 2)
        sampler = Seeded(model, tokenizer.eos_token_id, 6)
        trajectories = played(AgentEnvironment(agent, format="text"), sampler=sampler, tokenizer=tokenizer)
        found.append([sorted((turn.prompt_ids, turn.response_ids) for turn in one.turns) for one in trajectories])
    assert found[0] == found[1] and found[0][0] != found[0][1]


def test_the_policy_never_reads_what_its_agent_dropped() -> None:
    tokenizer = chat_tokenizer()
    found = exact(AgentEnvironment(compacting, format="text"), tokenizer=tokenizer, history="conversation")
    later = tokenizer.decode(found[0].turns[3].prompt_ids)
    assert "no 0" not in later and "Three guesses" in later and len(rows_of(found)) == 4


@pytest.mark.parametrize("history", ["window", "conversation"])
@pytest.mark.parametrize("agent", [compacting, in_parallel])
def test_a_text_that_is_known_after_play_stands_in_each_turns_own_request(agent: Any, history: str) -> None:
    def hint(turn: Turn) -> str:
        return HINT

    exact(AgentEnvironment(agent, format="text"), history=history, source=hint)


@pytest.mark.parametrize("history", ["window", "conversation"])
def test_a_chat_trains(chat_policy: Any, tmp_path: Path, history: str) -> None:
    rewards = itertools.count()  # no two siblings get the same

    async def agent(row: Row, client: Client) -> float:
        await guessing(row, client, 2)
        return float(next(rewards))

    rows = Dataset.from_list([{"task_id": f"g{n}"} for n in range(2)])
    environment = AgentEnvironment(agent, format="text")
    parts = {"environment_factory": environment, "train_dataset": rows, "method": "align_opsd", "history": history}
    trainer = trainer_of(chat_policy, tmp_path / "run", skip_zero_advantage=False, max_completion_length=8, **parts)
    before = [value.clone() for value in trainer.model.parameters()]
    trainer.train()
    turns = read_records(tmp_path / "run" / "trajectories")
    assert len(turns) == 8 and turns.message.eq("").all()
    assert any((value != old).any() for value, old in zip(trainer.model.parameters(), before, strict=True))


def test_agents_that_return_nothing_end_a_run_without_reward_functions(chat_policy: Any, tmp_path: Path) -> None:
    async def agent(row: Row, client: Client) -> None:
        await client.chat(messages=START)

    def one(environments: Any, **columns: Any) -> list[float]:
        return [1.0] * len(environments)

    rows = Dataset.from_list([{"task_id": f"g{n}"} for n in range(2)])
    parts = {"environment_factory": AgentEnvironment(agent, format="text"), "train_dataset": rows, "method": "grpo"}
    with pytest.raises(RewardError, match=r"returned no reward; return a number"):
        trainer_of(chat_policy, tmp_path / "silent", max_completion_length=4, **parts).train()
    trainer_of(chat_policy, tmp_path / "run", max_completion_length=4, reward_funcs=one, **parts).train()


def raising(error: BaseException) -> Any:
    async def agent(row: Row, client: Client) -> None:
        await client.chat(messages=START)
        raise error

    return agent


async def never_asks(row: Row, client: Client) -> float:
    return 1.0


async def hangs(row: Row, client: Client) -> None:
    await client.chat(messages=START)
    await asyncio.sleep(60)


async def hangs_at_once(row: Row, client: Client) -> None:
    await asyncio.sleep(60)


async def blocks_its_loop(row: Row, client: Client) -> None:
    await client.chat(messages=START)
    time.sleep(4)


async def sends_an_image(row: Row, client: Client) -> None:
    blocks = [{"type": "image_url", "image_url": {"url": "data:"}}]
    await client.chat(messages=[{"role": "user", "content": blocks}])


async def dies_as_a_process(row: Row, client: Client) -> None:
    await client.chat(messages=START)
    dying = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    await asyncio.to_thread(subprocess.run, dying, check=True)


async def returns_a_text(row: Row, client: Client) -> str:
    await client.chat(messages=START)
    return "won"


async def exits(row: Row, client: Client) -> None:
    sys.exit("no key")


class Odd(Exception):
    code: Any = ["a"]  # no code of the API's


FAULTS = {
    raising(Odd("mine")): "Odd: mine",
    raising(asyncio.CancelledError()): "RuntimeError: the agent raised CancelledError",
    raising(KeyboardInterrupt()): "RuntimeError: the agent raised KeyboardInterrupt",
    raising(KeyError("broken")): "KeyError: 'broken'",
    exits: "RuntimeError: the agent raised SystemExit: no key",
    never_asks: "ended without a request",
    hangs: "neither asked nor ended",
    hangs_at_once: "neither asked nor ended",
    blocks_its_loop: "neither asked nor ended",
    sends_an_image: "'image_url'",
    dies_as_a_process: "SIGKILL",
    returns_a_text: "return a number",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_own_episode(fault: Any) -> None:
    async def agent(row: Row, client: Client) -> Any:
        return await (fault if row["task_id"] == "bad" else guessing)(row, client)

    found = played(AgentEnvironment(agent, format="text"), [{"task_id": "bad"}, *ONE], limit=1.5)
    bad, good = [[one for one in found if (one.task == "bad") == failed] for failed in (True, False)]
    assert all(one.failed and FAULTS[fault] in one.message for one in bad), [one.message for one in bad]
    assert all(one.stop is StopReason.DONE and one.reward == 1.0 for one in good), good


def test_a_request_after_the_end_is_refused() -> None:
    late: list[str] = []

    def agent(row: Row, client: Client) -> float:
        def ask_later() -> None:
            time.sleep(1.0)
            try:
                client.chat_sync(messages=START)
            except Refused as error:
                late.append(error.code)

        client.chat_sync(messages=START)
        asking.append(threading.Thread(target=ask_later))
        asking[-1].start()
        return 1.0

    asking: list[threading.Thread] = []
    found = played(AgentEnvironment(agent, format="text"))
    for one in asking:
        one.join()
    assert late == ["episode_over"] * 2 and all(one.reward == 1.0 for one in found)


def test_an_agent_has_a_last_word_at_the_turn_limit() -> None:
    async def agent(row: Row, client: Client) -> Ending:
        try:
            return Ending(reward=await guessing(row, client, 99))
        except Refused as error:
            assert error.status == 400
            return Ending(reward=0.25, won=False)

    found = played(AgentEnvironment(agent, format="text", max_turns=4))
    assert [(one.stop, one.reward, one.won, len(one.turns)) for one in found] == [
        (StopReason.TURN_LIMIT, 0.25, False, 4)
    ] * 2


def test_a_cancelled_request_is_not_sampled() -> None:
    async def agent(row: Row, client: Client) -> float:
        first, second = [asyncio.ensure_future(client.chat(messages=[*START[:1], one])) for one in (START[1], START[1])]
        await first
        second.cancel()
        await client.chat(messages=START)
        return 1.0

    found = played(AgentEnvironment(agent, format="text"))
    assert all(one.reward == 1.0 and not one.failed for one in found), found


@pytest.mark.parametrize("asides", [0, 1])
def test_siblings_that_open_differently_end_the_run(asides: int) -> None:
    async def agent(row: Row, client: Client) -> None:
        for _ in range(asides):
            await client.not_trained().chat(messages=START)
        await client.chat(messages=[{"role": "user", "content": f"It is {time.monotonic_ns()}."}])

    with pytest.raises(SiblingsDiffer, match="It is"):
        played(AgentEnvironment(agent, format="text"))


def test_sub_agents_on_threads_may_ask_in_any_order() -> None:
    def agent(row: Row, client: Client) -> float:
        order = "ab" if len(begun) % 2 else "ba"
        begun.append(order)
        threads = [threading.Thread(target=client.chat_sync, kwargs={"messages": named(name)}) for name in order]
        for one in threads:
            one.start()
            time.sleep(0.1)
        for one in threads:
            one.join()
        return 1.0

    begun: list[str] = []
    found = played(AgentEnvironment(agent, format="text"), siblings=4)
    assert all(one.reward == 1.0 and len(one.turns) == 2 for one in found), found
    assert len({tuple(one.turns[0].prompt_ids) for one in found}) == 1


class UnknownTool(Exception):
    """What a framework raises for a call that the policy made up."""


async def makes_its_own_of_a_refusal(row: Row, client: Client) -> None:
    with contextlib.suppress(Exception):
        await client.chat(messages=START, tools=[GUESS], tool_choice="required")
    raise RuntimeError("ModelError -> BadRequestError")


@pytest.mark.parametrize(
    ("agent", "lost"),
    [
        (raising(UnknownTool("fly")), "UnknownTool: fly"),
        (makes_its_own_of_a_refusal, "RuntimeError: ModelError -> BadRequestError"),
    ],
)
def test_what_the_policy_is_to_blame_for_is_a_lost_episode(agent: Any, lost: str) -> None:
    found = played(AgentEnvironment(agent, loses=(UnknownTool,)))
    assert all(one.stop is StopReason.DONE and one.won is False for one in found), found
    assert found[0].turns[0].info["lost"] == lost


def test_what_a_program_elsewhere_says_of_the_policy_loses() -> None:
    async def agent(row: Row, client: Client) -> float:
        await client.chat(messages=START)
        program = "import sys, urllib.request as u; u.urlopen(sys.argv[1] + '/lost', b'called fly'); sys.exit(1)"
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, client.url], check=row["checks"])
        return 0.25

    rows = [{"task_id": "raises", "checks": True}, {"task_id": "returns", "checks": False}]
    found = played(AgentEnvironment(agent, format="text"), rows)
    assert [(one.stop, one.won, one.reward) for one in found] == [
        *[(StopReason.DONE, False, 0.0)] * 2,
        *[(StopReason.DONE, False, 0.25)] * 2,
    ], [one.message for one in found]
    assert all(one.turns[-1].info["lost"] == "called fly" for one in found)


def test_a_group_of_the_policys_mistakes_is_lost() -> None:
    async def agent(row: Row, client: Client) -> None:
        async def one() -> None:
            await client.chat(messages=START)
            raise UnknownTool(row["task_id"]) if row["task_id"] == "fly" else KeyError("broken")

        async with asyncio.TaskGroup() as group:
            group.create_task(one())

    rows = [{"task_id": "fly"}, {"task_id": "broken"}]
    found = played(AgentEnvironment(agent, format="text", loses=(UnknownTool,)), rows)
    assert [(one.failed, one.won) for one in found[::2]] == [(False, False), (True, False)], found
    assert "KeyError: 'broken'" in found[2].message and found[0].turns[0].info["lost"] == "UnknownTool: fly"


def test_an_agent_that_never_ends_burns_nothing() -> None:
    asked = [0]

    def agent(row: Row, client: Client) -> None:
        while True:
            try:
                asked[0] += 1
                client.chat_sync(messages=START)
            except BaseException:
                pass

    began = time.process_time()
    found = played(AgentEnvironment(agent, format="text", max_turns=3, last_words=0.5), siblings=8)
    time.sleep(0.5)
    assert all(one.failed and len(one.turns) == 3 for one in found)
    assert asked[0] < 8 * 50 and time.process_time() - began < 5


def test_a_required_call_that_does_not_come_is_the_policys_fault() -> None:
    agent = asking({"tools": [GUESS], "tool_choice": "required"})
    calling = played(AgentEnvironment(agent), say=lambda text: guessed(3))
    silent = played(AgentEnvironment(agent), say=lambda text: "no")
    assert all(one.reward == 1.0 for one in calling) and all(one.won is False and not one.failed for one in silent)


@pytest.mark.parametrize("length", [500, 300_000])
def test_a_prompt_that_is_too_long_is_never_cut(length: int) -> None:
    async def agent(row: Row, client: Client) -> float:
        await client.chat(messages=START)
        try:
            await client.chat(
                messages=[*START, {"role": "assistant", "content": "x"}, {"role": "user", "content": "x" * length}]
            )
        except Refused as error:
            assert error.code == "context_length_exceeded"
            if row["task_id"] == "gives up":
                raise
        await client.chat(messages=START)
        return 1.0

    rows = [*ONE, {"task_id": "gives up"}]
    for history in ("window", "conversation"):
        found = played(AgentEnvironment(agent, format="text"), rows, max_prompt_length=300, history=history)
        assert [(one.stop, one.reward, len(one.turns)) for one in found] == [
            *[(StopReason.DONE, 1.0, 2)] * 2,
            *[(StopReason.PROMPT_TOO_LONG, 0.0, 1)] * 2,
        ], found


def test_a_response_ends_at_a_stop_string_and_at_max_tokens() -> None:
    async def agent(row: Row, client: Client) -> float:
        one = (await client.chat(messages=START, stop=["STOP"]))["choices"][0]
        two = await client.chat(messages=START, max_tokens=2)
        kept = two["choices"][0]
        assert (one["message"]["content"], one["finish_reason"]) == ("abc", "stop"), one
        assert (kept["message"]["content"], kept["finish_reason"]) == ("ab", "length"), kept
        assert two["usage"]["completion_tokens"] == 2
        return 1.0

    tokenizer = chat_tokenizer()
    found = played(AgentEnvironment(agent, format="text"), say=lambda text: "abcSTOPdef", tokenizer=tokenizer)
    assert all(one.reward == 1.0 for one in found), [one.message for one in found]
    assert [tokenizer.decode(turn.response_ids) for turn in found[0].turns] == ["abcSTOP", "ab"]
    assert [turn.truncated for turn in found[0].turns] == [False, True]


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.7},
        {"presence_penalty": 1.0},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
    ],
)
def test_other_sampling_is_refused_or_ignored(asked: dict[str, Any], caplog: Any) -> None:
    agent = asking(asked)
    refusing = AgentEnvironment(agent, format="text")
    assert all(one.failed and "Refused" in one.message for one in played(refusing, settings={"temperature": 1.0}))
    ignoring = AgentEnvironment(agent, format="text", sampling="ignore")
    assert all(one.reward == 1.0 for one in played(ignoring, settings={"temperature": 1.0}))


def test_rewards_go_to_turns_and_a_judge_is_no_row() -> None:
    async def agent(row: Row, client: Client) -> float:
        messages = list(START)
        for number in range(2):
            said = text_of(await client.chat(messages=messages))
            judged = text_of(await client.not_trained().chat(messages=[{"role": "user", "content": f"Judge {said}"}]))
            client.reward(number + 1)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": judged}]
        return 0.5

    found = played(AgentEnvironment(agent, format="text"), history="conversation")
    assert [[turn.reward for turn in one.turns] for one in found] == [[1.0, 2.5]] * 2
    assert all("Judge" in str(one.turns[1].info["not_trained"]) for one in found) and len(rows_of(found)) == 2


@pytest.mark.parametrize("way", ["tasks", "threads", "answers", "openai"])
def test_sub_agents_reward_their_own_turns(way: str) -> None:
    if way == "openai":
        pytest.importorskip("openai")

    async def agent(row: Row, client: Client) -> float:
        async def ask(number: int) -> Any:
            messages = named(number)
            if way == "openai":
                answer = await client.openai.chat.completions.create(model="policy", messages=messages)
            else:
                answer = await client.chat(messages=messages)
            await asyncio.sleep(0.02 * next(delays))
            if way != "answers":
                client.reward(number)
            return answer

        def on_thread(number: int) -> None:
            client.chat_sync(messages=named(number))
            client.reward(number)

        await client.chat(messages=START)
        client.reward(0.5)
        asking = [asyncio.to_thread(on_thread, one) for one in range(3)] if way == "threads" else map(ask, range(3))
        answers = await asyncio.gather(*asking)
        if way == "answers":
            for number, answer in enumerate(answers):
                client.reward(number, answer)
        return 10.0

    delays = iter([3, 2, 1, 1, 2, 3])
    tokenizer = chat_tokenizer()
    for one in played(AgentEnvironment(agent, format="text"), tokenizer=tokenizer):
        given = {tokenizer.decode(turn.prompt_ids): turn.reward - 10 * (turn is one.turns[-1]) for turn in one.turns}
        assert {text: number for text in given for number in range(3) if f"You are {number}." in text} | {
            text: 0.5 for text in given if START[0]["content"] in text
        } == given
        assert one.reward == 13.5, one.message


def test_a_reward_that_may_be_anybodys_asks_whose_it_is() -> None:
    def agent(row: Row, client: Client) -> float:
        threads = [threading.Thread(target=client.chat_sync, kwargs={"messages": START}) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        client.reward(1.0)
        return 0.0

    def say(text: str) -> str:
        time.sleep(0.3)  # both threads have asked
        return "1"

    found = played(AgentEnvironment(agent, format="text"), say=say, siblings=1)
    assert found[0].failed and "client.reward(value, answer)" in found[0].message


def test_a_stream_and_several_choices() -> None:
    pytest.importorskip("openai")

    async def agent(row: Row, client: Client) -> float:
        create = client.openai.chat.completions.create
        several = await create(model="policy", messages=START, n=2)
        asked = {"model": "policy", "messages": START, "stream": True, "stream_options": {"include_usage": True}}
        chunks = [one async for one in await create(**asked)]
        assert chunks[-1].usage.completion_tokens > 0 and chunks[0].choices[0].delta.content
        return float(len(several.choices) == 2)

    found = played(AgentEnvironment(agent, format="text"))
    assert [(one.reward, len(one.turns)) for one in found] == [(1.0, 3)] * 2, found


@pytest.mark.full
def test_many_rounds_leave_no_threads_and_no_memory() -> None:
    batch = AgentEnvironment(guessing, format="text").batch(64, 30.0)
    threads, sizes = [], []
    tracemalloc.start()
    for _ in range(6):
        batch.reset(range(64), [{"task_id": "one"}] * 64)
        threads.append(threading.active_count())
        live = list(range(64))
        while live:
            steps = batch.step(live, [Reply("1")] * len(live))
            live = [slot for slot, step in zip(live, steps, strict=True) if not step.done]
        batch.finish(range(64))
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    batch.close()
    assert max(threads) <= threads[0] + 4 and sizes[-1] < sizes[1] + 100_000
