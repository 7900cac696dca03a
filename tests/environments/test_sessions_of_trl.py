"""TRL's HarborSpec and OpenRewardSpec: a session for each episode, and none left open. Their SDKs are stand-ins."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fakes.tool_classes import as_tool_calls, trainer_of

OPENED: list[Any] = []
"""All sessions of a test, in the order in which they began."""


class Sandbox:
    """Stands in for Harbor's environment of one task, whose client belongs to one event loop."""

    os = "linux"

    def __init__(self) -> None:
        self.open, self._loop = False, None
        OPENED.append(self)

    async def start(self, force_build: bool) -> None:
        self.open, self._loop = True, asyncio.get_running_loop()

    async def exec(self, command: str, **options: Any) -> Any:
        return SimpleNamespace(stdout=command, stderr="", return_code=0)

    async def run_healthcheck(self) -> None: ...

    async def empty_dirs(self, folders: list[Any], chmod: bool) -> None: ...

    async def stop(self, delete: bool) -> None:
        assert asyncio.get_running_loop() is self._loop
        self.open = False


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    made = ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def harbor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The parts of a trainer that Harbor's spec brings."""
    from trl.experimental.harbor import HarborSpec

    for number in range(2):
        (tmp_path / "tasks" / f"task{number}" / "environment").mkdir(parents=True)
        (tmp_path / "tasks" / f"task{number}" / "task.toml").write_text("")

    def task(task_dir: Path) -> Any:
        paths, config = SimpleNamespace(environment_dir=task_dir / "environment"), SimpleNamespace(environment={})
        config.verifier = SimpleNamespace(env={})
        return SimpleNamespace(instruction=task_dir.name, paths=paths, short_name=task_dir.name, config=config)

    async def verify() -> Any:
        return SimpleNamespace(rewards={"reward": 1.0})

    def anything(**given: Any) -> Any:
        return SimpleNamespace(**given)

    makes = SimpleNamespace(create_environment_from_config=lambda **given: Sandbox())
    checks = SimpleNamespace(create_verifier_from_config=lambda *given, **named: SimpleNamespace(verify=verify))
    paths = SimpleNamespace(for_os=lambda kind: SimpleNamespace(verifier_dir="/logs"))
    for name in ("harbor", "harbor.environments", "harbor.models", "harbor.models.task", "harbor.models.trial"):
        _module(monkeypatch, name)
    _module(monkeypatch, "harbor.verifier")
    _module(monkeypatch, "harbor.environments.factory", EnvironmentFactory=makes)
    _module(monkeypatch, "harbor.models.task.task", Task=task)
    _module(monkeypatch, "harbor.models.trial.config", EnvironmentConfig=anything, VerifierConfig=anything)
    _module(monkeypatch, "harbor.models.trial.paths", TrialPaths=anything, EnvironmentPaths=paths)
    _module(monkeypatch, "harbor.verifier.factory", VerifierFactory=checks)
    return HarborSpec(str(tmp_path))


SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = SimpleNamespace(name="bash", description="Run a command.", input_schema=SCHEMA)


class Session:
    """Stands in for a session of OpenReward."""

    def __init__(self) -> None:
        self.open = False

    def __enter__(self) -> Session:
        OPENED.append(self)
        self.open = True
        return self

    def __exit__(self, *error: Any) -> None:
        self.open = False

    def list_tools(self) -> list[Any]:
        return [TOOL]

    def get_prompt(self) -> list[Any]:
        return [SimpleNamespace(type="text", text="Say bash.")]

    def call_tool(self, name: str, given: dict[str, Any]) -> Any:
        shown = [SimpleNamespace(type="text", text=given["command"])]
        return SimpleNamespace(blocks=shown, reward=1.0, metadata=None, finished=True)


@pytest.fixture
def openreward(monkeypatch: pytest.MonkeyPatch) -> Any:
    from trl.experimental.openreward import OpenRewardSpec

    served = SimpleNamespace(session=lambda **given: Session(), list_tools=lambda: [TOOL], num_tasks=lambda split: 2)
    served.get_task = lambda split, index: SimpleNamespace(task_spec={})
    client = SimpleNamespace(environments=SimpleNamespace(get=lambda name: served))
    _module(monkeypatch, "openreward", OpenReward=lambda **given: client)
    return OpenRewardSpec("http://localhost:1", num_tasks=2)


@pytest.fixture(autouse=True)
def _none_opened() -> Iterator[None]:
    yield
    OPENED.clear()


@pytest.mark.full
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["harbor", "openreward"])
def test_a_run_opens_a_session_for_each_episode_and_closes_it(
    name: str, fails: bool, request: pytest.FixtureRequest, chat_policy: Any, tmp_path: Path
) -> None:
    spec = request.getfixturevalue(name)
    plans = [[as_tool_calls("", [("bash", {"command": "ls"})]), "done"]] * 4
    parts = {"environment_factory": spec.environment_factory, "train_dataset": spec.train_dataset, "method": "grpo"}
    parts["reward_funcs"] = (lambda **given: 1 / 0) if fails else spec.reward_funcs
    trainer = trainer_of(chat_policy, tmp_path / "run", plans, **parts, max_steps=1)
    asked = len(OPENED)  # by OpenReward's spec, for the tools
    with pytest.raises(Exception, match="division by zero") if fails else nullcontext():
        trainer.train()
    assert len(OPENED) - asked == 4
    assert not any(one.open for one in OPENED)
