"""Worlds of others: siblings play the same task, whatever their code draws from and shares, and training its own."""

from __future__ import annotations

import datetime
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.toy import Scripted, ToyEnvironment, build_tokenizer, toy_dataset
from fakes.trainers import make_config, make_trainer, trained
from fakes.worlds import Drawing

from alignopsd_trl.checks.intended import Intended, check
from alignopsd_trl.environments import Failure, Opening, PlainEnvironment, SerialBatch, Step, TaskPanel, open_batch
from alignopsd_trl.environments.adapters import OpenEnvEnvironment, ToolEnvironment
from alignopsd_trl.environments.alike import difference
from alignopsd_trl.environments.base import EnvironmentsDown
from alignopsd_trl.environments.batch import MOST_HANGING
from alignopsd_trl.environments.generators import kept
from alignopsd_trl.methods import get_method
from alignopsd_trl.rollout.episode import episode_seeds
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.skills import load_skills, skill_source
from alignopsd_trl.turns import Seeds

SIBLINGS = 8


class Careless(PlainEnvironment):
    """Seeds and draws from the global generators, as most people write it."""

    def reset(self, seed: int, **row: Any) -> Opening:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self.seen = [self._draw() for _ in range(20)]
        return Opening("a door", "open it")

    def step(self, action: str) -> Step:
        self.seen.append(self._draw())
        return Step(str(self.seen[-1]), reward=self.seen[-1][0])

    def _draw(self) -> tuple[float, float, float]:
        time.sleep(0)  # lets other threads go on
        return random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))


class Unseeded(Careless):
    """Draws, and seeds nothing."""

    def reset(self, **row: Any) -> Opening:
        self.seen = [self._draw()]
        return Opening("a door", "open it")


def _played(batch: Any, groups: int = 2) -> list[list[Any]]:
    """Plays sibling groups side by side in different orders, and returns what each episode saw."""
    size = groups * SIBLINGS
    tasks = [{"seed": episode_seeds(f"task {slot // SIBLINGS}", 0, 0).seed} for slot in range(size)]
    seen: list[list[Any]] = [[opening] for opening in batch.reset(range(size), tasks)]
    for turn in range(3):
        order = random.Random(turn).sample(range(size), size)
        for part in (order[: size // 3], order[size // 3 :]):
            for slot, step in zip(part, batch.step(part, ["go"] * len(part)), strict=True):
                seen[slot].append(step)
    return seen


@pytest.mark.parametrize("kind", [Careless, Unseeded])
def test_a_careless_world_has_equal_siblings_in_every_group(kind: type[Careless]) -> None:
    batch, groups = open_batch(kind, 30 * SIBLINGS), 30
    seen = _played(batch, groups)
    batch.close()
    worlds = [seen[group * SIBLINGS : (group + 1) * SIBLINGS] for group in range(groups)]
    assert all(episode == group[0] for group in worlds for episode in group)
    assert len({str(group[0]) for group in worlds}) == groups, "tasks have worlds of their own"


def _drawn() -> tuple[Any, ...]:
    return random.gauss(0, 1), np.random.normal(), torch.rand(())


def test_playing_leaves_the_numbers_of_the_process_alone() -> None:
    def numbers(play: bool) -> tuple[Any, ...]:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        first = _drawn()  # half of a pair of normal numbers is left
        for batch in (open_batch(Careless, 16), SerialBatch([Unseeded() for _ in range(16)])) if play else ():
            _played(batch)
            batch.close()
        return *first, *_drawn(), torch.initial_seed()

    with torch.random.fork_rng():
        assert numbers(True) == numbers(False)


def test_turns_and_a_serial_batch_see_the_same() -> None:
    seen = []
    for batch in (open_batch(Unseeded, 16), SerialBatch([Unseeded() for _ in range(16)])):
        seen.append(_played(batch))
        batch.close()
    assert seen[0] == seen[1]


@pytest.mark.full
def test_worker_processes_see_what_turns_see() -> None:
    """Also where a worker was lost and its episodes were played again."""
    batch = open_batch(Drawing, 16)
    assert batch.environment(0) is None and batch.name == "Drawing" and batch.takes_dynamics_seed is False
    apart = _played(batch)
    processes = {step.info["process"] for step in batch.step(range(16), ["where"] * 16)}
    assert os.getpid() not in processes
    (lost,) = batch.step([3], ["leave"])
    assert isinstance(lost, Failure) and lost.message.startswith("SystemExit: leave (worlds.py")
    odd = batch.step([4, 5, 6], ["lock", "written", "read"])
    no = "step() returned can't leave the worker process"
    says = (no, f"{no}: EOFError: no end was closed", "can't be read here: EOFError: no end was closed")
    for one, told in zip(odd, says, strict=True):
        assert isinstance(one, Failure) and told in one.message
    os.kill(min(processes), signal.SIGKILL)
    kept = [0, 1, 8, 9]
    went_on = batch.step(kept, ["go"] * 4), batch.finish(kept)
    with pytest.raises(EnvironmentsDown, match="down"):
        batch.step([0], ["down"])
    batch.close()
    here = open_batch(Drawing, 16, here=True)
    assert isinstance(here.environment(0), Drawing)
    assert apart == _played(here)
    here.step(kept, ["where"] * 4)
    assert went_on == (here.step(kept, ["go"] * 4), here.finish(kept))
    here.close()


@pytest.mark.full
def test_a_factory_for_processes_may_be_a_lambda() -> None:
    class Local(Drawing):
        pass

    batch = open_batch(lambda: Local(), 2)
    assert isinstance(batch.reset([0], [{"seed": 1}])[0], Opening)
    batch.close()


def test_what_can_not_be_sent_to_processes_is_refused_in_words() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match="environment Drawing: its factory can't be sent to a worker process"):
        open_batch(lambda: (lock, Drawing())[1], 2)
    odd = type("Odd", (Drawing,), {"concurrent": "sometimes"})
    with pytest.raises(ValueError, match="environment Odd: concurrent='sometimes' must be False"):
        open_batch(odd, 2)


class OneParser(Careless):
    """Its module holds the state of a call, so that two calls at once break it."""

    stack: list[int] = []

    def step(self, action: str) -> Step:
        self.stack.append(1)
        time.sleep(0.001)
        self.stack.pop()
        if self.stack:
            raise IndexError("two calls at once")
        return Step("fine")


def test_calls_of_a_world_with_state_in_its_module_take_turns_unless_it_declares_otherwise() -> None:
    def failed(kind: type) -> int:
        batch = open_batch(kind, 16)
        batch.reset(range(16), [{"seed": 1}] * 16)
        steps = batch.step(range(16), ["go"] * 16)
        batch.close()
        return sum(isinstance(step, Failure) for step in steps)

    assert failed(OneParser) == 0
    assert failed(type("Declared", (OneParser,), {"concurrent": True})) > 0


def test_a_declared_world_waits_for_all_at_once() -> None:
    meeting = threading.Barrier(8, timeout=20)

    class Waiting(ToyEnvironment):
        concurrent = True

        def step(self, action: str) -> Step:
            meeting.wait()  # until all are there
            return Step("zero")

    batch = open_batch(Waiting, 8)
    batch.reset(range(8), [{"task_id": "a", "target": "one", "dynamics_seed": 0}] * 8)
    assert all(isinstance(step, Step) for step in batch.step(range(8), ["left"] * 8))
    assert batch.worker is not None and batch.worker(5) == 5
    batch.close()


class Tools:
    def reset(self, **row: Any) -> str:
        self.number = random.random()
        return "go"

    def look(self) -> str:
        """Looks."""
        return f"{self.number} {random.random()}"


def test_adapters_take_turns_for_user_classes_and_not_for_waiting_clients() -> None:
    assert open_batch(ToolEnvironment(Tools), 1).concurrent is False
    waiting = type("Waiting", (Tools,), {"concurrent": True})
    assert open_batch(ToolEnvironment(waiting), 1).concurrent is True
    assert open_batch(ToolEnvironment({"a": waiting, "b": Tools}), 1).concurrent is False
    assert OpenEnvEnvironment(Tools, reward="sum").concurrent is True

    async def search(query: str) -> str:
        """Searches."""
        return query

    def count(query: str) -> str:
        """Counts."""
        return query

    declared = [ToolEnvironment(kind, tools).concurrent for kind, tools in ((None, [search]), (None, [search, count]))]
    declared += [ToolEnvironment(kind, [search]).concurrent for kind in (waiting, Tools)]
    vars(count)["concurrent"] = True
    assert [*declared, ToolEnvironment(None, [count]).concurrent] == [True, False, True, False, True]
    batch = open_batch(ToolEnvironment(Tools), 4)
    batch.reset(range(4), [{"prompt": "go", "seed": 7}] * 4)
    said = [batch.step([slot], ["look()"])[0].observation for slot in (2, 0, 3, 1)]
    batch.close()
    assert len(set(said)) == 1


def test_calls_that_hang_end_their_own_episodes_and_after_some_those_that_wait_behind_them() -> None:
    gate = threading.Event()

    class Stuck(ToyEnvironment):
        def step(self, action: str) -> Step:
            if action == "hang":
                gate.wait()
            return super().step(action)

    size = 12
    batch = open_batch(Stuck, size, time_limit=0.1)
    rows = [{"task_id": "a", "target": "one", "dynamics_seed": 4}] * size
    batch.reset(range(size), rows)
    steps = batch.step(range(size), ["left", "hang"] * (size // 2))
    kinds = [step.kind if isinstance(step, Failure) else "step" for step in steps]
    gate.set()
    reopened = batch.reset(range(size), rows)
    batch.close()
    assert kinds[: 2 * MOST_HANGING] == ["step", "timeout"] * MOST_HANGING
    assert set(kinds[2 * MOST_HANGING + 2 :]) == {"error"} and "not called: " in steps[-1].message
    assert all(isinstance(opening, Opening) for opening in reopened)


def test_a_call_that_comes_after_the_end_is_answered_and_keeps_nobody_waiting() -> None:
    batch = open_batch(ToyEnvironment, 2)
    batch.reset([0, 1], [{"task_id": "a", "target": "one", "dynamics_seed": 4}] * 2)
    holds, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with kept():
            holds.set()
            ended.wait(9)

    steps: list[Any] = []
    calls: list[Callable[[], object]] = [hold, lambda: steps.extend(batch.step([0], ["left"]))]
    others = [threading.Thread(target=call, daemon=True) for call in calls]
    others[0].start()
    holds.wait(9)
    others[1].start()
    ending = threading.Thread(target=batch.close, daemon=True)
    ending.start()
    time.sleep(0.1)
    ended.set()
    for thread in (*others, ending):
        thread.join(9)
        assert not thread.is_alive()
    [late] = batch.step([1], ["left"])
    assert isinstance(late, Failure) and len(steps) == 1


def test_a_careless_world_trains_and_training_draws_its_own_numbers(tmp_path: Path) -> None:
    seen: list[float] = []

    class Seeds(ToyEnvironment):
        def reset(self, **row: Any) -> Opening:
            random.seed(1)
            torch.manual_seed(1)
            return super().reset(**row)

        def step(self, action: str) -> Step:
            seen.append(random.random())
            return super().step(action)

    def losses(kind: type, name: str) -> list[float]:
        trainer = trained(tmp_path / name, kind, script=False, max_steps=2)
        return [log["loss"] for log in trainer.state.log_history if "loss" in log]

    assert losses(Seeds, "careless") == pytest.approx(losses(ToyEnvironment, "sound"), rel=1e-6)
    assert seen[0] == random.Random(1).random()


# what `check` finds


class Sound(PlainEnvironment):
    def reset(self, seed: int, **row: Any) -> Opening:
        self.secret = random.Random(seed).randrange(1000)
        return Opening("a door", "open it")

    def step(self, action: str) -> Step:
        return Step(f"{action} {self.secret}", reward=1.0)


class Clock(Sound):
    def step(self, action: str) -> Step:
        return Step(str(time.perf_counter_ns()))


class NoSeed(PlainEnvironment):
    def reset(self, **row: Any) -> Opening:
        return Opening("a door", "open it")

    step = Clock.step


class ClassState(Sound):
    """The class holds what an episode should."""

    secret = 0

    def reset(self, seed: int, **row: Any) -> Opening:
        type(self).secret = random.Random(seed).randrange(1000)
        return Opening("a door", "open it")


class LeftOver(Sound):
    def reset(self, seed: int, **row: Any) -> Opening:
        self.count = getattr(self, "count", 0)
        return super().reset(seed)

    def step(self, action: str) -> Step:
        self.count += 1
        return Step("", reward=float(self.count))


def _batched(kind: type) -> Any:
    class Factory:
        def __call__(self) -> Any:
            return kind()

        def batch(self, size: int, time_limit: float) -> SerialBatch:
            return SerialBatch([kind() for _ in range(size)])

    return Factory()


@pytest.mark.parametrize(
    ("factory", "about", "words"),
    [
        (Sound, "", ""),
        (Careless, "", ""),
        (Clock, "replay", "reset() takes 'seed' already, so something else decides too"),
        (NoSeed, "replay", "Give reset() a parameter 'seed'"),
        (LeftOver, "reset", "let reset() set all state anew"),
        (ClassState, "siblings", "environments share state (class attributes"),
        (_batched(ClassState), "siblings", "its batch(size, time_limit) mixes episodes"),
        (
            type("Threads", (OneParser,), {"concurrent": True}),
            "siblings",
            "leave out concurrent, and environments take turns",
        ),
    ],
)
def test_check_plays_siblings_side_by_side_and_names_the_true_remedy(
    factory: Callable[[], Any], about: str, words: str
) -> None:
    scripts = [({"seed": number, "task_id": f"t{number}"}, ["go", "left"]) for number in range(3)]
    differs = difference(factory, scripts, 20.0, lambda row: row["task_id"])
    assert (differs.about if differs else "") == about, differs
    assert differs is None or (words in differs.text and differs.text.startswith("task 't")), differs


def test_a_prompt_that_differs_between_siblings_ends_the_run(tmp_path: Path) -> None:
    class Renders:
        name = "renders"

        def render(self, view: Any, skill: str = "") -> str:
            return f"go {time.perf_counter_ns()}"

    class Named(Sound):
        prompt = Renders()

    trainer = make_trainer(tmp_path, Named)
    with pytest.raises(ValueError, match="siblings opened alike and read different first prompts.*prompt.render"):
        trainer.train()


def test_what_an_environment_writes_into_its_row_is_its_own_episodes() -> None:
    class Deals(Sound):
        def reset(self, cards: list[int], **row: Any) -> Opening:  # type: ignore[override]
            return Opening(str(cards.pop()), "go")

    row = {"cards": [1, 2, 3], "seed": 1}
    batch = open_batch(Deals, 2)
    assert [start.observation for start in batch.reset([0, 1], [row, row])] == ["3", "3"] and row["cards"] == [
        1,
        2,
        3,
    ]
    batch.close()


def test_columns_may_have_any_name_but_self() -> None:
    class Any_(Sound):
        def reset(self, **row: Any) -> Opening:  # type: ignore[override]
            return Opening(str(sorted(row)), "go")

    row = dict.fromkeys(["method", "slot", "call", "task", "func", "args", "row", "environment"], 1)
    for batch in (open_batch(Any_, 1), open_batch(_batched(Any_), 1)):
        assert batch.reset([0], [row])[0].observation == str(sorted(row))
        (failed,) = batch.reset([0], [row | {"self": 1}])
        batch.close()
        assert "the row has a column 'self', which no reset() can take by its name; rename it" in failed.message


def test_a_projection_and_a_skill_that_hang_cost_their_turn_within_the_time_limit() -> None:
    gate = threading.Event()

    class Hangs(Sound):
        def project(self, response: str, admissible: Any = None) -> Any:
            gate.wait()

    batch = open_batch(Hangs, 2, time_limit=0.1)
    projection = batch.project("left")
    assert isinstance(projection, Failure) and projection.message == "no answer within 0.1 s"
    assert batch.limited(gate.wait) == projection and batch.limited(lambda: 3) == 3
    gate.set()
    batch.close()


def test_an_exception_without_a_text_costs_its_episode_alone() -> None:
    class Mute(Exception):
        def __init__(self, problem: Any):
            self.problem = problem

        def __str__(self) -> str:
            if isinstance(self.problem, type):
                raise self.problem
            return self.problem

    class Raises(Sound):
        def step(self, action: str) -> Step:
            raise Mute({"raises": ValueError, "exits": SystemExit, "no text": 3}.get(action, action))

    actions = ["raises", "exits", "no text", "\ud800", "x" * 10_000]
    batch = open_batch(Raises, len(actions), time_limit=5.0)
    batch.reset(range(len(actions)), [{"seed": 1}] * len(actions))
    said = [failure.message for failure in batch.step(range(len(actions)), actions)]
    batch.close()
    assert [text.partition(",")[0] for text in said[:3]] == ["Mute: its text can't be read"] * 3
    assert said[3].startswith("Mute: \\ud800 (test_worlds.py") and len(said[4]) < 5000


def _player(skills: Any, batch: Any) -> Player:
    tokenizer = build_tokenizer()
    return Player(
        environments=batch,
        renderer=Renderer(tokenizer, batch.prompt, PlayOptions(128)),
        sampler=Scripted(lambda prompts: ([[tokenizer.eos_token_id] for _ in prompts], None)),
        tokenizer=tokenizer,
        end_ids=[tokenizer.eos_token_id],
        skills=skill_source(load_skills(skills), tokenizer, 30),
    )


def _with_skill(skills: Any) -> list[Any]:
    rows = [{"task_id": "a", "cards": [1]} for _ in range(4)]
    batch = open_batch(type("Short", (Sound,), {"max_turns": 1, "prompt": ToyEnvironment.prompt}), 4, time_limit=0.2)
    played = _player(skills, batch).play(rows, [Seeds(1, 1)] * 4, ["a"] * 4)
    batch.close()
    assert rows == [{"task_id": "a", "cards": [1]}] * 4
    return played


def test_a_skill_function_gets_its_own_row_and_tells_siblings_one_text() -> None:
    count = iter(range(100))

    def skill(task_text: str, row: dict[str, Any]) -> str:
        row["task_id"] = "b"
        row["cards"].append(2)
        return f"pick {next(count)}"

    played = _with_skill(skill)
    assert {episode.row["task_id"] for episode in played} == {"a"}
    assert len({episode.skill_text for episode in played}) == 1


def test_a_skill_function_that_hangs_costs_the_episodes_of_its_task_within_the_time_limit() -> None:
    gate = threading.Event()

    def skill(task_text: str, row: dict[str, Any]) -> str:
        gate.wait()
        return ""

    played = _with_skill(skill)
    gate.set()
    assert all(episode.failed and "its skill: no answer within 0.2 s" in episode.message for episode in played)


def test_a_stream_of_tasks_is_refused_in_words(tmp_path: Path) -> None:
    config, rows = make_config(tmp_path, method="grpo"), toy_dataset(4).to_iterable_dataset()
    with pytest.raises(ValueError, match="train_dataset is of the class IterableDataset.*Dataset.from_list"):
        check(Intended(config, get_method("grpo")(config), object(), rows, factory=Sound))


def test_a_panel_holds_dates_bytes_and_arrays_and_names_a_column_that_it_can_not_hold() -> None:
    values = {"day": datetime.date(2026, 1, 2), "at": datetime.datetime(2026, 1, 2), "raw": b"x", "array": np.ones(2)}
    panel = TaskPanel.of("mine", "test", [{"task_id": "a", **values}])
    other = TaskPanel.of("mine", "test", [{"task_id": "a", **values, "array": np.zeros(2)}])
    assert len(panel.checksum) == 16 and panel.checksum != other.checksum
    with pytest.raises(ValueError, match="panel 'test', row 0: column 'odd' holds a object"):
        _ = TaskPanel.of("mine", "test", [{"task_id": "a", "odd": object()}]).checksum
