"""Clients of OpenEnv: a stand-in with its types here; .ci/openenv plays a real server."""

from __future__ import annotations

import enum
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

import pytest
from datasets import Dataset
from fakes.sweeps import mostly_full
from fakes.tool_classes import chat_model, chat_tokenizer, messages, played, trainer_of

from alignopsd_trl import read_records
from alignopsd_trl.checks import tasks
from alignopsd_trl.commands import cli
from alignopsd_trl.environments import Failure, Opening
from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.batch import open_batch

ActionT = TypeVar("ActionT")
ObservationT = TypeVar("ObservationT")
StateT = TypeVar("StateT")


@dataclass
class StepResult:
    observation: Any
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


@dataclass
class GuessAction:
    number: int
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class MoveAction:
    row: int
    column: int
    comment: str = ""


@dataclass
class Seen:
    hint: str
    left: int
    done: bool = False
    reward: float | None = None


class Client(Generic[ActionT, ObservationT, StateT]):
    """What the typed clients of OpenEnv have in common."""


class GuessClient(Client[GuessAction, Seen, dict]):
    opened = 0
    alive = True

    def __init__(self) -> None:
        type(self).opened += 1
        if not self.alive:
            raise ConnectionError("connection refused")
        self.closed = False

    def reset(self, **options: Any) -> StepResult:
        self._check()
        self.secret, self.left = options.get("secret", options["seed"] % 9 + 1), 3
        return StepResult(Seen("Between 1 and 9.", self.left))

    def step(self, action: GuessAction) -> StepResult:
        self._check()
        if not isinstance(action.number, int):
            raise RuntimeError("Server error: number must be an int (code: VALIDATION_ERROR)")
        self.left -= 1
        right = action.number == self.secret
        hint = "right" if right else "higher" if action.number < self.secret else "lower"
        return StepResult(Seen(hint, self.left), reward=1.0 if right else -0.1, done=right or not self.left)

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if not self.alive or self.closed:
            raise ConnectionError("the server is gone")


class AsyncClient(GuessClient):
    async def reset(self, **options: Any) -> StepResult:
        return GuessClient.reset(self, **options)

    async def step(self, action: GuessAction) -> StepResult:
        return GuessClient.step(self, action)

    async def close(self) -> None:
        GuessClient.close(self)


GUESS = {"seed": 3, "prompt": "Guess."}
GAME = ["<think><action>9</action></think><action>2</action>", "<action>4</action>"]


@pytest.mark.parametrize("client", [GuessClient, AsyncClient])
@pytest.mark.parametrize(("reward", "total"), [("sum", 0.9), ("last", 1.0)])
def test_an_episode_of_a_client(client: type, reward: str, total: float) -> None:
    environment = OpenEnvEnvironment(
        client, reward=reward, success=lambda result, total: result.observation.hint == "right"
    )
    opening, steps, ending = played(environment, GUESS, *GAME)
    assert opening.observation == "hint: Between 1 and 9.\nleft: 3" and opening.task_text == "Guess."
    assert [step.observation.split("\n")[0] for step in steps] == ["hint: higher", "hint: right"]
    assert [step.done for step in steps] == [False, True] and all(step.won is None for step in steps)
    assert sum(step.reward for step in steps) + ending.reward == pytest.approx(total)
    assert ending.won and ending.score == pytest.approx(total)


def test_the_rule_of_rewards_must_be_named() -> None:
    with pytest.raises(ValueError, match="reward=None: say how.*'sum'.*'last'"):
        OpenEnvEnvironment(GuessClient)
    with pytest.raises(TypeError, match="connect must be a callable"):
        OpenEnvEnvironment("http://localhost", reward="sum")


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), ('{"number": 4}', 4), ("four", "four"), ('{"nummer": 4}', None), ("", None)],
)
def test_actions_are_json_or_the_one_required_field(text: str, number: Any) -> None:
    seen: list[Any] = []

    class Watching(GuessClient):
        def step(self, action: GuessAction) -> StepResult:
            seen.append(action.number)
            return super().step(action)

    _, (step,), _ = played(OpenEnvEnvironment(Watching, reward="sum"), GUESS, f"<action>{text}</action>")
    assert seen == ([number] if number is not None else [])
    assert step.valid is (number == 4) and ("error" in step.observation) is (number != 4)


def test_several_required_fields_are_named_in_the_prompt() -> None:
    class Board(GuessClient, Client[MoveAction, Seen, dict]):  # ty: ignore[invalid-generic-class]
        __orig_bases__ = (Client[MoveAction, Seen, dict],)

        def step(self, action: MoveAction) -> StepResult:
            return StepResult({"row": action.row, "column": action.column}, 1.0, True)

    environment = OpenEnvEnvironment(Board, reward="sum")
    opening, steps, _ = played(environment, GUESS, '<action>{"row": 1, "column": 2}</action>')
    assert 'JSON object with "row" (int), "column" (int), "comment" (str, optional)' in opening.context.form.described
    assert steps[0].observation == "row: 1\ncolumn: 2"
    _, steps, _ = played(environment, GUESS, "<action>up</action>")
    assert "is no JSON object" in steps[0].observation and not steps[0].valid
    own = OpenEnvEnvironment(Board, act=lambda text: MoveAction(*map(int, text.split())), show=str, reward="sum")
    _, steps, _ = played(own, GUESS, "<action>3 4</action>")
    assert steps[0].observation == "{'row': 3, 'column': 4}"


@dataclass
class Turning:
    direction: Literal["left", "right"]
    speed: Speed | None = None
    stops: list[str] = field(default_factory=list)


class Speed(enum.Enum):
    SLOW, FAST = "slow", "fast"


def test_choices_of_a_field_are_written_out() -> None:
    class Wheel(GuessClient, Client[Turning, Seen, dict]):  # ty: ignore[invalid-generic-class]
        __orig_bases__ = (Client[Turning, Seen, dict],)

    opening, _, _ = played(OpenEnvEnvironment(Wheel, reward="sum"), GUESS, "<action></action>")
    described = opening.context.form.described
    assert '"direction" ("left" or "right")' in described
    assert '"speed" ("slow" or "fast" or null, optional), "stops" (list[str], optional)' in described


@pytest.mark.full
def test_a_client_that_returns_another_type_a_slow_one_and_one_that_raises_cost_their_episode() -> None:
    class Tuple(GuessClient):
        def step(self, action: GuessAction) -> Any:
            return "seen", 1.0, True

    class Slow(GuessClient):
        async def step(self, action: GuessAction) -> StepResult:
            time.sleep(3)
            return StepResult(None)

    class Words(GuessClient):
        def step(self, action: GuessAction) -> StepResult:
            return StepResult(Seen("x", 1), reward="much")

    for kind, message in (
        (Tuple, r"the client's step() returned ('seen', 1.0, True) (tuple)"),
        (Slow, "no answer within 2 s"),
        (Words, "the reward of the client's step() is 'much' (str), no number"),
    ):
        _, (step,), _ = played(OpenEnvEnvironment(kind, reward="sum"), GUESS, "<action>4</action>", limit=2.0)
        assert isinstance(step, Failure) and message in step.message


def test_a_server_that_dies_costs_the_episodes_under_way_and_is_found_again_when_it_is_back() -> None:
    class Mortal(GuessClient):
        pass

    environment = OpenEnvEnvironment(Mortal, reward="sum")
    batch = open_batch(environment, 2, 2.0)
    rows = [{"seed": 3, "prompt": "Guess."}] * 2
    assert all(isinstance(one, Opening) for one in batch.reset([0, 1], rows))
    Mortal.alive = False
    gone, _ = batch.step([0], ["4"])[0], Mortal.opened
    assert isinstance(gone, Failure) and "the server is gone" in gone.message
    assert all("connection refused" in one.message for one in batch.reset([0, 1], rows))
    Mortal.alive = True
    assert all(isinstance(one, Opening) for one in batch.reset([0, 1], rows))
    batch.step([0, 1], ["4", "4"])
    Mortal.alive = False
    Mortal.alive = True
    batch.environment(1).environment.closed = True  # its connection was lost meanwhile
    assert all(isinstance(one, Opening) for one in batch.reset([0, 1], rows))
    batch.close()


@pytest.mark.parametrize("method", mostly_full(["align_opsd", "grpo"]))
def test_a_client_trains(tmp_path: Path, method: str) -> None:
    tokenizer = chat_tokenizer()
    chat_model(tokenizer).save_pretrained(tmp_path / "policy")
    rows = Dataset.from_list([{"prompt": messages("Guess.", "You guess."), "secret": 4 + n} for n in range(2)])
    guesses = [f"<action>{number}</action>" for number in range(10)]
    plans = [GAME, [guesses[2], "five", guesses[5], guesses[6]], [*GAME, guesses[4]], [guesses[4]] * 3]
    environment = OpenEnvEnvironment(AsyncClient, reward="sum", max_turns=4 if method == "grpo" else 2)
    parts = {
        "environment_factory": environment,
        "train_dataset": rows,
        "max_completion_length": 128 if method == "grpo" else 16,
    }
    plans = plans if method == "grpo" else None
    trainer = trainer_of((tmp_path / "policy", tokenizer), tmp_path / "run", plans, method=method, **parts)
    trainer.train()
    turns = read_records(tmp_path / "run" / "trajectories")
    assert turns.won.isna().all() and turns.message.eq("").all()
    if method == "grpo":
        rewards = sorted(turns.groupby(["task", "rollout"]).reward.first().round(6))
        assert rewards == pytest.approx([-0.3, -0.3, -0.3, 0.9])
        assert turns.action_valid.tolist().count(False) == 1


SCHEMA = {
    "properties": {
        "number": {"type": "integer", "description": "Your guess"},
        "tone": {"$ref": "#/$defs/Tone"},
        "metadata": {"type": "object"},
        "reasons": {"type": "array", "items": {"type": "string"}, "default": []},
    },
    "required": ["number", "tone"],
    "$defs": {"Tone": {"enum": ["kind", "blunt"], "type": "string"}},
}


class Schema(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/schema" else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"action": SCHEMA}).encode())

    def log_message(self, *_: Any) -> None:
        pass


class GenericClient(Client[dict, dict, dict]):
    """As OpenEnv's own: annotations that can't be read at run time; actions and observations are dicts."""

    alive, at_once, opened = True, 20, 0

    def __init__(self, base_url: str) -> None:
        self.base_url, self.game, self.open = base_url, GuessClient(), False

    def sync(self) -> SyncEnvClient:  # noqa: F821 # ty: ignore[unresolved-reference]
        raise AssertionError("not a tool")

    def reset(self, **options: Any) -> StepResult:
        if not self.alive or not self.open and GenericClient.opened >= self.at_once:
            raise RuntimeError("Server error: Server at capacity (code: CAPACITY_REACHED)")
        GenericClient.opened += not self.open
        self.open = True
        return StepResult(vars(self.game.reset(**options).observation))

    def step(self, action: dict[str, Any]) -> StepResult:
        if action.get("tone") not in ("kind", "blunt"):
            raise RuntimeError("Server error: tone must be kind or blunt (code: VALIDATION_ERROR)")
        result = self.game.step(GuessAction(action.get("number", "")))
        return StepResult(vars(result.observation), result.reward, result.done)

    def close(self) -> None:
        GenericClient.opened -= self.open
        self.open = False


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server that says what its actions are; `openenv.core` is a stand-in."""
    core = ModuleType("openenv.core")
    vars(core)["GenericEnvClient"] = GenericClient
    monkeypatch.setitem(sys.modules, "openenv", ModuleType("openenv"))
    monkeypatch.setitem(sys.modules, "openenv.core", core)
    monkeypatch.setattr(GenericClient, "opened", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Schema) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.full
def test_check_plays_a_server_by_what_it_says_of_its_actions(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check", address, "--episodes", "16"])
    told = capsys.readouterr().out
    assert '"number" (int: Your guess), "tone" ("kind" or "blunt"), "reasons" (list[str], optional)' in told
    assert "WRONG" not in told and "random play: unknown how many of 16 won" in told and "metadata" not in told


def test_a_server_without_a_page_of_its_actions_takes_json(address: str) -> None:
    opening, steps, _ = played(
        OpenEnvEnvironment(lambda: GenericClient(f"{address}/elsewhere"), reward="sum"),
        GUESS,
        '<action>{"number": 4, "tone": "kind"}</action>',
    )
    assert opening.context.form.described == "The action is a JSON object." and steps[0].reward == 1.0


def test_check_names_a_server_that_gives_too_few_sessions_and_one_that_is_away(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tasks, "PATIENCE", 0.0)
    for alive, said in ((True, "gave 1 sessions"), (False, "GenericClient: reset() fails for every client")):
        monkeypatch.setattr(GenericClient, "at_once", 1)
        monkeypatch.setattr(GenericClient, "alive", alive)
        with pytest.raises(SystemExit) as end:
            cli.main(["check", address])
        told = capsys.readouterr().err
        assert end.value.code == 2 and said in told and len(told.splitlines()) == 1


def test_the_template_of_a_client_demonstrates_and_plans(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    forgotten: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["new", "guessing", "--openenv", address, "--model", "tiny"])
    monkeypatch.syspath_prepend(tmp_path / "guessing")
    player = tmp_path / "guessing" / "guessing_player.py"
    player.write_text(player.read_text().replace("{'message': view.observation[:40]}", "dict(number=4, tone='kind')"))
    cli.main(["demonstrate", "guessing", "--episodes", "4"])
    assert "reward" in capsys.readouterr().out
    flags = ["--environment", "guessing", "--method", "grpo", "--rounds", "1", "--tasks_per_round", "2"]
    cli.main(
        ["train", "webshop_tiny", "--plan", *flags, "--num_generations", "4", "--output_dir", str(tmp_path / "run")]
    )
    assert "environment=guessing" in capsys.readouterr().out


TASK = """\
import os
from dataclasses import dataclass
from datasets import Dataset
from alignopsd_trl.environments import Suite
from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.panel import TaskPanel

free = int(os.environ["SESSIONS"])


@dataclass
class Result:
    observation: str
    reward: float = 0.0
    done: bool = True


class Limited:
    def __init__(self):
        global free
        if not free:
            raise RuntimeError("Server error: all sessions are in use (code: CAPACITY_REACHED)")
        free -= 1

    def reset(self):
        return Result("Guess.", done=False)

    def step(self, action: str):
        return Result("Right.", 1.0)

    def close(self):
        global free
        free += 1


def suite():
    rows = [{"task_id": f"t{n}", "category": "all", "prompt": f"Guess {n}."} for n in range(4)]
    return Suite(
        name="limited", factory=OpenEnvEnvironment(Limited, reward="sum"), tasks=lambda split: Dataset.from_list(rows),
        panel=lambda name: TaskPanel.of(name, "limited", rows), categories=("all",), description={},
    )
"""


@pytest.mark.parametrize("plan", [["--plan"], []], ids=["plan", "train"])
@pytest.mark.parametrize(
    ("sessions", "said"),
    [
        (5, "8 episodes are played at once, and the server gave 5 sessions (RuntimeError: Server error: all sessions"),
        (0, "reset() fails for every client (RuntimeError: Server error"),
        (8, None),
    ],
)
@pytest.mark.full
def test_a_server_with_too_few_sessions_is_refused_before_training(
    plan: list[str], sessions: int, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "limited_server.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SESSIONS", str(sessions))
    monkeypatch.delitem(sys.modules, "limited_server", raising=False)
    flags = ["--environment", "limited_server", "--method", "grpo", "--rounds", "1", "--tasks_per_round", "2"]
    flags += ["--num_generations", "4", "--output_dir", str(tmp_path / "run"), "--evaluate_first", "False"]
    monkeypatch.setattr(sys, "argv", [])
    if said is None:
        cli.main(["train", "webshop_tiny", "--plan", *flags])
        assert sys.modules["limited_server"].free == sessions
        return
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "webshop_tiny", *plan, *flags])
    told = capsys.readouterr().err
    assert end.value.code == 2 and said in told and len(told.splitlines()) == 1
    assert not (tmp_path / "run").exists()
