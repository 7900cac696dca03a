"""Coding agents as their makers ship them, which `.ci/programs` installs, with a policy that mends a file."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_programs.coding import HERE, PROGRAMS, coding
from datasets import Dataset
from fakes.agent_play import played
from fakes.tool_classes import as_tool_calls, chat_tokenizer, trainer_of
from fakes.toy import answer_with

from alignopsd_trl import read_records
from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.turns import StopReason

pytestmark = pytest.mark.full
BROKEN = "def add(a, b):\n    return a - b\n"
TEST = "from calc import add\n\n\ndef test():\n    assert add(1, 2) == 3\n"
ROWS = [{"task_id": "one", "task": "The test in test_calc.py fails. Mend calc.py and run the test."}]
SHELLS = {  # the name of the tool and what a call of it has
    "codex": ("exec_command", lambda text: {"cmd": text}),
    "claude": ("Bash", lambda text: {"command": text, "description": "Does it."}),
    "qwen": ("run_shell_command", lambda text: {"command": text, "is_background": False}),
    "opencode": ("bash", lambda text: {"command": text, "description": "Does it."}),
}
STEPS = ["cat calc.py", "sed s/-/+/ calc.py > new && mv new calc.py"]  # qwen's shell keeps `sed -i` to its own tool
ELSEWHERE = {"opencode": {"registry.npmjs.org:443"}}  # asked for once, and not needed


def mending(name: str) -> Any:
    """A policy that mends the file by the program's shell, and titles what has no tools."""
    tool, given = SHELLS.get(name, ("bash", lambda text: {"command": text}))
    steps = [*STEPS, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"] if name == "mini-swe-agent" else STEPS

    def say(prompt: str) -> str:
        done = prompt.count("<tool_response>")
        if f'"name": "{tool}"' not in prompt:
            return "Mending"
        return as_tool_calls("", [(tool, given(steps[done]))]) if done < len(steps) else "Done."

    return say


class Proxy(BaseHTTPRequestHandler):
    """Notes what is asked for elsewhere, and refuses it."""

    asked: set[str]

    def _note(self) -> None:
        self.asked.add(self.path)
        self.send_error(502)

    do_CONNECT = do_GET = do_POST = _note  # noqa: N815 (http.server's names)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, set[str]]]:
    asked: set[str] = set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Noting", (Proxy,), {"asked": asked}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_coding_agent_trains_as_it_is(name: str, elsewhere: tuple[str, set[str]]) -> None:
    command = str(PROGRAMS[name]["command"][0])
    if shutil.which(command) is None:
        pytest.skip(f"{name}: .ci/programs installs it" if name != "claude" else "claude is proprietary: install it")
    proxy, asked = elsewhere
    more = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
    more |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    before, log, tokenizer = {*psutil.pids()}, list[Any](), chat_tokenizer()
    environment = AgentEnvironment(
        coding(name, lambda row: {"calc.py": BROKEN, "test_calc.py": TEST}, **more), sampling="ignore"
    )
    given = {"history": "conversation", "past_thinking": "keep", "max_prompt_length": 1 << 17, "limit": 120.0}
    found = played(environment, ROWS, mending(name), log=log, tokenizer=tokenizer, **given)
    assert not [one.message for one in found if one.failed]
    turns = [turn for one in found for turn in one.turns]
    assert [(one.stop, one.reward, one.won) for one in found] == [(StopReason.DONE, 1.0, True)] * 2, turns[-1].info
    sampled = [(*prompt, *response) for prompt, response in log]
    assert {(*one.prompt_ids, *one.response_ids) for one in turns} <= {*sampled}
    for one in found:  # one row
        assert [turn.info["follows"] for turn in one.turns] == [None, *range(len(one.turns) - 1)]
        for earlier, later in zip(one.turns, one.turns[1:], strict=False):
            whole = [*earlier.prompt_ids, *earlier.response_ids]
            assert later.prompt_ids[: len(whole)] == whole
    assert found[0].turns[0].prompt_ids == found[1].turns[0].prompt_ids
    assert asked <= ELSEWHERE.get(name, set()), asked
    until = time.monotonic() + 5
    while (left := _programs() - before) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


@pytest.mark.parametrize("name", ["anthropic", "pi"])  # the policy here has room for 8,192 bytes
def test_a_round_of_a_coding_agent_trains(name: str, chat_policy: Any, tmp_path: Path) -> None:
    if not HERE.is_dir():
        pytest.skip(f"{name}: .ci/programs installs it")
    environment = AgentEnvironment(
        coding(name, lambda row: {"calc.py": BROKEN, "test_calc.py": TEST}), sampling="ignore"
    )
    rows = [{**ROWS[0], "task_id": name, "hint": "It subtracts."} for name in ("one", "two")]
    parts = {"environment_factory": environment, "train_dataset": Dataset.from_list(rows), "method": "align_opsd"}
    parts |= {"history": "conversation", "past_thinking": "keep", "max_prompt_length": 7900, "max_steps": 1}
    trainer = trainer_of(chat_policy, tmp_path / "run", **parts, logging_steps=1, environment_time_limit=120.0)
    tokenizer, say, tried = trainer.processing_class, mending(name), [0]

    def respond(prompts: Any, *ignored: Any) -> Any:
        tried[0] += 1
        texts = ["I can't." if place % 2 else say(tokenizer.decode(ids)) for place, ids in enumerate(prompts)]
        return [[*tokenizer(one, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for one in texts], None

    answer_with(trainer, respond)
    before = [value.clone() for value in trainer.model.parameters()]
    trainer.train()
    turns = read_records(tmp_path / "run" / "trajectories")
    assert turns.message.eq("").all() and {*turns.won} == {True, False}
    assert any((value != old).any() for value, old in zip(trainer.model.parameters(), before, strict=True))


def _programs() -> set[int]:
    """The processes that run what `.ci/programs` installed, and what those started."""
    mark = str(HERE)
    return {
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if mark in " ".join(one.info["cmdline"] or ()) and one.pid != os.getpid()
    }
