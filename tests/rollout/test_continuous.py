"""Episodes that wait for nobody: what they hold is what they hold when all wait, and nothing slow holds them up."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from fakes.lockstep_cases import POLICIES, Faulty, on_processes, shown
from fakes.models import CONFIGS, SHAPE
from fakes.playing import Seeded, Waiting, play_rows, play_suite, play_toy, seed_requests, toy_model
from fakes.sweeps import mostly_full
from fakes.toy import Scripted, ToyEnvironment, build_tokenizer, toy_dataset
from fakes.trainers import losses, make_trainer
from transformers import AutoModelForCausalLM

from alignopsd_trl.environments.base import EnvironmentsDown, Step
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.rollout.driver import Lockstep
from alignopsd_trl.rollout.sampler import Continuous, Request, RequestFailed, Response
from alignopsd_trl.turns import StopReason, Trajectory

# Equal, whatever the order


@pytest.mark.parametrize("suite", mostly_full(POLICIES))
def test_nobody_waits_and_all_wait_give_the_same_records(suite: str) -> None:
    (alone, _), (together, _) = play_suite(suite, Seeded), play_suite(suite, Waiting)
    assert shown(alone) == shown(together)
    assert len({len(one.turns) for one in alone} | {len(turn.response_ids) for one in alone for turn in one.turns}) > 2


@pytest.mark.full
def test_failures_time_limits_a_teacher_and_other_processes_change_nothing_of_that() -> None:
    for seed in range(2):
        toy_model(seed)  # made before there are threads

    def play(kind: type[Seeded]) -> Any:
        return lambda process, agree: play_toy(Faulty, kind, 6 - 4 * process, teacher=True, agree=agree)

    alone, together = (on_processes(2, play(kind)) for kind in (Seeded, Waiting))
    assert [shown(one) for one in alone] == [shown(one) for one in together]
    assert list(map(len, alone)) == [18, 6]
    assert 0 < sum(one.stop is StopReason.ENVIRONMENT_ERROR for part in alone for one in part) < 24


def test_plays_of_the_same_episodes_differ_by_their_draw() -> None:
    one, again, other = (play_toy(ToyEnvironment, Seeded, 2, sampling_seed=seed) for seed in (0, 0, 1))
    assert shown(one) == shown(again) != shown(other)


# Nobody holds up the others


class Leisurely(ToyEnvironment):
    """Episodes of one task take their time; when each step was made is on record."""

    concurrent = True
    log: list[tuple[str, float]] = []

    def reset(self, task_id: str, **columns: Any) -> Any:
        self._slow = task_id == "toy/0"
        return super().reset(task_id, **columns)

    def step(self, action: str) -> Step:
        if self._slow:
            time.sleep(1.0)
        self.log.append(("slow" if self._slow else "fast", time.monotonic()))
        return super().step(action)


@pytest.mark.full
def test_a_slow_environment_holds_up_nobody_else() -> None:
    Leisurely.log = []
    rows = [row for row in toy_dataset(4) for _ in range(3)]
    played = play_rows(Leisurely, rows, build_tokenizer(), [Threaded()])
    assert max(len(one.turns) for one in played if one.task != "toy/0") >= 4
    first_slow = min(when for kind, when in Leisurely.log if kind == "slow")
    assert all(when < first_slow for kind, when in Leisurely.log if kind == "fast")


class Threaded(Continuous):
    """Answers from threads of its own, all but the requests of some episodes."""

    def __init__(self, *refused: int) -> None:
        self._refused = refused
        self._asked: set[Future[Response]] = set()

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Any:
        future: Any = Future()
        self._asked.add(future)

        def give() -> None:
            self._asked.discard(future)
            if request.episode in self._refused:
                future.set_exception(RequestFailed("no response after 4 tries"))
            else:
                tokens = build_tokenizer()("<action>left</action>", add_special_tokens=False)["input_ids"]
                future.set_result(Response([*tokens, 2]))

        threading.Timer(0.01, give).start()
        return future

    def advance(self) -> bool:
        return False

    def drop(self) -> None:
        self._asked.clear()


def test_a_request_that_fails_costs_its_episode() -> None:
    played = play_rows(ToyEnvironment, [*toy_dataset(3)], build_tokenizer(), [Threaded(1)])
    assert [one.failed for one in played] == [False, True, False]
    assert "no response could be sampled: no response after 4 tries" in played[1].message
    assert len(played[1].turns) == 1, "the turn that it failed in is on record"


class Interrupting(ToyEnvironment):
    """Somebody presses Ctrl-C while steps are made: once, since a later signal would end whatever test comes next."""

    pressed = threading.Lock()

    def step(self, action: str) -> Step:
        if self._turns == 1:
            if self.pressed.acquire(blocking=False):
                signal.raise_signal(signal.SIGINT)
            time.sleep(1.5)
        return super().step(action)


def test_an_interrupt_ends_the_play_at_once() -> None:
    sampler, began = Threaded(), time.monotonic()
    rows = [row for row in toy_dataset(4) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        play_rows(Interrupting, rows, build_tokenizer(), [sampler])
    assert time.monotonic() - began < 10 and sampler.waiting == 0


class Down(ToyEnvironment):
    def step(self, action: str) -> Step:
        raise EnvironmentsDown("the service has gone")


@pytest.mark.parametrize("kind", [Seeded, Waiting])
def test_environments_that_are_down_end_the_play_of_all(kind: type[Seeded]) -> None:
    before = threading.active_count()

    def play(process: int, agree: Any) -> Any:
        return play_toy(ToyEnvironment if process else Down, kind, 4, agree=agree, each=agree.each)

    errors = on_processes(2, play)
    assert [type(error) for error in errors] == [EnvironmentsDown] * 2
    assert "the service has gone" in str(errors[0])
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_requests_are_forgotten_when_a_play_ends_early() -> None:
    model, tokenizer = AutoModelForCausalLM.from_config(CONFIGS["qwen2"](**SHAPE)).eval(), build_tokenizer()
    sampler = Seeded(model, 2)
    with pytest.raises(EnvironmentsDown):
        play_rows(Down, [*toy_dataset(8)], tokenizer, [sampler])
    assert sampler.waiting == 0 and not sampler.advance()


def test_a_batch_sampler_is_asked_by_all_together() -> None:
    calls: list[list[list[int]]] = []
    inner = Scripted(lambda prompts: (calls.append(prompts) or [[7]] * len(prompts), None))
    sampler = Lockstep(inner, lambda number: max(number, 3), lambda: [9])
    second, first = sampler.submit(Request([2], episode=1)), sampler.submit(Request([1], episode=0))
    assert sampler.waiting == 2 and not first.done()
    assert sampler.advance() and calls == [[[1], [2], [9]]]
    assert first.result().ids == second.result().ids == [7] and sampler.waiting == 0


# In a trainer


def _trained(folder: Path, waits: bool, **options: Any) -> Any:
    """A trainer's run, whose rounds are kept; with ``waits`` all episodes take each turn together."""
    trainer: Any = make_trainer(folder, script=False, max_steps=2, learning_rate=1e-3, **options)
    seed_requests(trainer, Waiting if waits else Seeded)
    inner, trainer.played = trainer.rollouts.play_groups, []

    def watched(*given: Any) -> list[Trajectory]:
        trainer.played.append(inner(*given))
        return trainer.played[-1]

    trainer.rollouts.play_groups = watched
    trainer.train()
    return trainer


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"method": "grpo"},
        {"method": "align_opsd"},
        {"method": "grpo", "privileged_siblings": 2, "teacher_model_kind": "base"},
    ],
)
def test_training_does_not_ask_who_waits(tmp_path: Path, options: dict[str, Any]) -> None:
    alone, together = (_trained(tmp_path / str(waits), waits, **options) for waits in (False, True))
    assert [shown(one) for one in alone.played] == [shown(one) for one in together.played]
    assert losses(alone) == pytest.approx(losses(together), abs=1e-4) and len(alone.played) == 2
    panel = TaskPanel.of("toy", "test", [*toy_dataset(4)])
    one, other = (trainer.evaluate_panel(panel).to_dict() for trainer in (alone, together))
    assert one == other
