"""What `alignopsd check` says of an agent's requests."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from alignopsd_trl.commands.own_task.check import agent
from alignopsd_trl.commands.own_task.playing import Answer
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.commands.own_task.warm_start.tiny import tiny_tokenizer
from alignopsd_trl.environments.adapters import AgentEnvironment, Program
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer

ROW = {"task_id": "one", "task": "Add."}
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}
CALLER = """
import json, os, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "In " + os.getcwd()}]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)).read()
"""


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": str(text)}


async def plain(row: Any, client: Any) -> float:
    first = [user("Begin.")]
    said = (await client.chat(messages=first))["choices"][0]["message"]
    await client.not_trained().chat(messages=[user("Judge.")])
    await client.chat(messages=[*first, said, user("Go on.")])
    return 1.0


async def titled(row: Any, client: Any) -> float:
    await client.chat(messages=[user("Begin.")], tools=[TOOL])
    await client.chat(messages=[user("A title for: Begin.")])
    return 1.0


async def dated(row: Any, client: Any) -> float:
    await client.chat(messages=[user(f"It is 2026-01-02 10:{time.monotonic_ns() % 10**6}.")])
    return 1.0


async def elsewhere(row: Any, client: Any) -> float:
    await client.chat(messages=[user(f"You are in /tmp/{time.monotonic_ns()}.")])
    return 1.0


async def changing(row: Any, client: Any) -> float:
    await client.chat(messages=[user("Begin.")])
    await client.chat(messages=[user("Begin."), {"role": "assistant", "content": "It said else."}, user("Go on.")])
    return 1.0


def looked(player: Any, history: str = "conversation", **options: Any) -> tuple[str, list[Any]]:
    environment = AgentEnvironment(player, **options)
    task = Task("one", Suite.of_rows("one", environment, lambda split: [ROW], description={}), {"history": history})
    renderer = Renderer(tiny_tokenizer(["a text"]), environment.prompt, PlayOptions(100))
    return agent.look_at(task, ROW, lambda asked: [Answer("yes")] * len(asked), 20.0, renderer)


def test_the_requests_are_counted() -> None:
    told, found = looked(plain, format="text")
    assert told.startswith("2 requests to train on, in a conversation 1 row, 1 not trained, the first after 0."), told
    assert "s of 20, with " in told and told.endswith("tokens of 100") and not found


@pytest.mark.parametrize(
    "player, about, words",
    [
        (titled, "aside", ["1 of 2", "A title for", "policy-aside", "trains="]),
        (dated, "siblings", ["a date or a time", "2026-01-02"]),
        (elsewhere, "siblings", ["a path", "/tmp/"]),
        (changing, "rows", ["request 2", "It said else", "yes"]),
    ],
)
def test_what_costs_rows_or_groups_is_named(player: Any, about: str, words: list[str]) -> None:
    told, (found,) = looked(player)
    assert found.about == about and all(word in found.text for word in words), found
    assert ("1 row" in told) == (about == "siblings")


def test_rows_matter_in_a_conversation_alone() -> None:
    told, found = looked(changing, history="window")
    assert "in a conversation 2 rows" in told and not found


def test_a_program_has_one_path_and_its_own_time() -> None:
    told, found = looked(
        Program([sys.executable, "-c", CALLER], reward=lambda folder: 1.0, time_limit=40.0), format="text"
    )
    assert "1 requests to train on" in told and "s of 40, with" in told and not found, (told, found)
