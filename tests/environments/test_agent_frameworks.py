"""Programs of agent frameworks, as their users write them; `.ci/frameworks` installs these."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import agent_programs
import pytest
from agent_programs.elsewhere import Elsewhere
from datasets import Dataset
from fakes.agent_play import exact, played
from fakes.tool_classes import as_tool_calls, chat_tokenizer, trainer_of
from fakes.toy import answer_with

from alignopsd_trl import read_records
from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.turns import StopReason

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

HERE = Path(agent_programs.__file__).parent
NEEDS = {
    "by_agents_sdk": ("agents", "openai"),
    "by_agents_sdk_chat": ("agents", "openai"),
    "by_langgraph": ("langgraph", "langchain_openai"),
    "by_pydantic_ai": ("pydantic_ai", "openai"),
    "by_pydantic_ai_chat": ("pydantic_ai", "openai"),
    "by_smolagents": ("smolagents", "openai"),
    "by_verifiers": ("verifiers", "openai"),
}
ELSEWHERE = {  # each with the folder of its environment, under that which FRAMEWORKS names
    "by_agent_framework": "agent_framework",
    "by_crewai": "crewai",
    "by_dspy": "dspy",
    "by_google_adk": "google_adk",
    "by_litellm": "litellm",
    "by_llamaindex": "llamaindex",
    "by_mcp": "mcp",
    "by_agents_sdk.mjs": "js",
    "by_ai_sdk.mjs": "js",
}
ROWS = [{"task_id": f"number-{number}", "number": number} for number in (3, 9)]


def command(name: str) -> list[str | Path]:
    """What runs a program of `ELSEWHERE`."""
    place = Path(os.environ.get("FRAMEWORKS", "not_there"), ELSEWHERE[name])
    if not place.is_dir():
        pytest.skip(f"{name}: .ci/frameworks installs what it needs")
    if not name.endswith(".mjs"):
        return [place / "bin" / "python", HERE / "worker.py", name]
    for file in HERE.glob("*.mjs"):  # Node looks for packages beside a program
        shutil.copy(file, place)
    return ["node", place / "worker.mjs", name]


@pytest.fixture(params=[*NEEDS, *ELSEWHERE], scope="module")
def program(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param in ELSEWHERE:
        found = Elsewhere(*command(request.param))
        yield found
        found.close()
        return
    for name in NEEDS[request.param]:
        pytest.importorskip(name)
    yield import_module(f"agent_programs.{request.param}")


def guessing(draw: random.Random, text: bool = False) -> Any:
    """A policy that guesses at random between what it was told, and ends when it was right."""

    def number(prompt: str) -> int:
        low, high = (re.findall(rf"(\d+) is too {word}", prompt) for word in ("low", "high"))
        return draw.randint(max(map(int, low), default=0) + 1, min(map(int, high), default=11) - 1)

    def sections(**fields: Any) -> str:
        """An answer to DSPy, which asks for its fields in a text of its own."""
        return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in (fields | {"completed": ""}).items())

    def say(prompt: str) -> str:
        if "starting with the field `[[ ## reasoning" in prompt:
            return sections(reasoning="It was right.", number="it")
        if "starting with the field `[[ ## next_thought" in prompt:
            chosen = ("finish", "{}") if " is right." in prompt else ("guess", f'{{"number": {number(prompt)}}}')
            return sections(next_thought="One more.", next_tool_name=chosen[0], next_tool_args=chosen[1])
        if " is right." in prompt:
            return as_tool_calls("", [("final_answer", {"answer": "it"})]) if "final_answer" in prompt else "Found."
        found = number(prompt)
        return str(found) if text else as_tool_calls("", [("guess", {"number": found})])

    return say


def test_a_program_plays_and_each_request_is_a_turn(program: Any) -> None:
    tokenizer = chat_tokenizer()
    environment = AgentEnvironment(program.agent, loses=program.LOSES)
    found = exact(environment, ROWS, guessing(random.Random(0)), tokenizer=tokenizer, limit=120.0)
    assert not [one.message for one in found if one.failed]
    for one in found:
        guesses = sum(
            bool(re.search('"guess"|\nguess\n', str(tokenizer.decode(turn.response_ids)))) for turn in one.turns
        )
        assert (one.stop, one.reward) == (StopReason.DONE, 1 / guesses), one


def test_what_a_policy_does_wrong_is_no_fault_of_the_program(program: Any) -> None:
    calls = ['{"name": "fly", "arguments": {}}', '{"name": "guess", "arguments": {"number": "three"}}', "{", "[]"]
    calls += ['{"name": "guess", "arguments": 3}', '{"name": null, "arguments": {}}', '{"name": "guess"}']
    wrong = ["", "Three.", *(f"<tool_call>\n{one}\n</tool_call>" for one in calls)]
    draw = random.Random(0)
    environment = AgentEnvironment(program.agent, loses=program.LOSES)
    found = played(environment, ROWS, lambda prompt: draw.choice(wrong), siblings=16, limit=120.0)
    assert not [one.message for one in found if one.failed]
    assert all(one.reward == 0 for one in found)


def test_a_program_trains(program: Any, chat_policy: Any, tmp_path: Path) -> None:
    environment = AgentEnvironment(program.agent, loses=program.LOSES, max_turns=12)
    parts = {"environment_factory": environment, "train_dataset": Dataset.from_list(ROWS), "method": "align_opsd"}
    parts |= {"history": "conversation", "max_prompt_length": 8000, "max_steps": 2, "logging_steps": 1}
    trainer = trainer_of(chat_policy, tmp_path / "run", **parts)
    tokenizer, say = trainer.processing_class, guessing(random.Random(0))

    def respond(prompts: Any, *ignored: Any) -> Any:
        texts = [say(tokenizer.decode(ids)) for ids in prompts]
        return [[*tokenizer(one, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for one in texts], None

    answer_with(trainer, respond)
    before = [value.clone() for value in trainer.model.parameters()]
    trainer.train()
    turns = read_records(tmp_path / "run" / "trajectories")
    assert turns.message.eq("").all() and len(turns) > 8
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    assert any((value != old).any() for value, old in zip(trainer.model.parameters(), before, strict=True))
