"""The contract of environments, from both sides of the border."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.toy import ToyEnvironment, toy_dataset

from alignopsd_trl.environments import (
    Ending,
    Failure,
    Opening,
    PlainEnvironment,
    Projection,
    Record,
    SerialBatch,
    Step,
    TaskPanel,
    View,
    open_batch,
)
from alignopsd_trl.environments.adapters import as_environment
from alignopsd_trl.environments.batch import MOST_STUCK
from alignopsd_trl.environments.validation import LONGEST_TEXT

ROWS = [{**row, "dynamics_seed": 2 + 5 * number} for number, row in enumerate(toy_dataset(4))]


def test_batch_plays_like_single_environments() -> None:
    batch = open_batch(ToyEnvironment, 4)
    openings = batch.reset(range(4), ROWS)
    single = [ToyEnvironment() for _ in ROWS]
    assert openings == [one.reset(**row) for one, row in zip(single, ROWS, strict=True)]
    assert isinstance(openings[0], Opening) and openings[0].task_text == "zero"
    assert batch.step([2, 0], ["up", "left"]) == [single[2].step("up"), single[0].step("left")]
    assert batch.finish([2, 0]) == [None, None]
    batch.close()


class Moody(ToyEnvironment):
    closed: list[Moody] = []

    def step(self, action: str) -> Step:
        if action == "raise":
            raise OSError("no shop")
        if action == "hang":
            time.sleep(1)
        return super().step(action)

    def close(self) -> None:
        self.closed.append(self)


def test_errors_and_timeouts_cost_their_own_slot_and_the_slot_recovers() -> None:
    batch = open_batch(Moody, 4, time_limit=0.3)
    batch.reset(range(4), ROWS)
    answers = batch.step(range(4), ["left", "raise", "hang", "left"])
    assert isinstance(answers[0], Step) and isinstance(answers[3], Step)
    assert answers[1].kind == "error" and answers[1].message.startswith("OSError: no shop (test_environment_base.py, ")
    assert answers[2].kind == "timeout" and "0.3 s" in answers[2].message
    assert all(isinstance(opening, Opening) for opening in batch.reset([1, 2], ROWS[:2]))
    assert isinstance(batch.step([2], ["left"])[0], Step)
    batch.close()


def test_every_environment_is_closed_once_also_those_that_failed_or_hung() -> None:
    Moody.closed.clear()
    batch = open_batch(Moody, 3, time_limit=0.3)
    batch.reset(range(3), ROWS[:3])
    batch.step(range(3), ["left", "raise", "hang"])
    assert len(Moody.closed) == 1, "the one that raised"
    batch.reset([1], ROWS[:1])
    batch.close()
    deadline = time.monotonic() + 10
    while len(Moody.closed) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(Moody.closed) == len(set(map(id, Moody.closed))) == 4, "two live ones, and the one that hung, later"


def test_a_close_that_raises_or_hangs_is_the_environments_own_trouble() -> None:
    class Clingy(ToyEnvironment):
        def close(self) -> None:
            time.sleep(0.6)
            raise OSError("busy")

    batch = open_batch(Clingy, 2, time_limit=0.2)
    batch.reset(range(2), ROWS[:2])
    batch.close()


def test_hanging_environments_add_threads_only_up_to_a_bound() -> None:
    gate = threading.Event()

    class Stuck(ToyEnvironment):
        concurrent = True

        def step(self, action: str) -> Step:
            gate.wait()
            return super().step(action)

    before, size = threading.active_count(), 32
    batch = open_batch(Stuck, size, time_limit=0.05)
    try:
        for _ in range(5):
            openings = batch.reset(range(size), ROWS * 8)
            live = [slot for slot, opening in enumerate(openings) if isinstance(opening, Opening)]
            if live:
                batch.step(live, ["left"] * len(live))
        assert threading.active_count() <= before + size + MOST_STUCK
        assert "hang" in openings[0].message and openings[0].kind == "timeout"
    finally:
        gate.set()
    deadline = time.monotonic() + 10
    while threading.active_count() > before + size and time.monotonic() < deadline:
        time.sleep(0.05)
    assert isinstance(batch.reset([0], ROWS[:1])[0], Opening), "as soon as calls return, slots recover"
    batch.close()


class Returns(ToyEnvironment):
    """A toy that returns what a test wants."""

    opening: Any = None
    answer: Any = None
    ending: Any = None
    projection: Any = None

    def reset(self, **task: Any) -> Any:
        good = super().reset(**task)
        return self.opening(good) if self.opening else good

    def step(self, action: str) -> Any:
        good = super().step(action)
        return self.answer(good) if self.answer else good

    def finish(self) -> Any:
        return self.ending() if self.ending else None

    def project(self, response: str, admissible: Any = None) -> Any:
        return self.projection() if self.projection else super().project(response, admissible)


LONG = "x" * (LONGEST_TEXT + 1)
BAD_STEPS: dict[str, tuple[Any, str]] = {
    "tuple": (("a door", 0.0, False), "step() returned the tuple ... return environments.Step("),
    "none": (None, "step() returned None; return environments.Step("),
    "observation": ({"observation": None}, "Step.observation is None, not a str"),
    "bytes": ({"observation": b"x"}, "Step.observation is the bytes b'x', not a str"),
    "surrogate": ({"observation": "a\ud800"}, "lone surrogate \\ud800 at character 1"),
    "megabyte": ({"observation": LONG}, "Step.observation has 262,145 characters"),
    "nan": ({"reward": float("nan")}, "Step.reward is nan, which is not finite"),
    "inf": ({"reward": -np.inf}, "Step.reward is -inf"),
    "no reward": ({"reward": None}, "Step.reward is None, not a number; use float"),
    "text reward": ({"reward": "1"}, "Step.reward is the str '1', not a number"),
    "array reward": ({"reward": np.zeros(2)}, "Step.reward is the ndarray"),
    "score": ({"score": float("nan")}, "Step.score is nan"),
    "done": ({"done": 1}, "Step.done is the int 1, not a bool"),
    "won": ({"won": 1}, "Step.won is the int 1, not a bool"),
    "valid": ({"valid": "yes"}, "Step.valid is the str 'yes', not a bool"),
    "one action": ({"admissible": "left"}, "Step.admissible is the str 'left', not a tuple"),
    "odd action": ({"admissible": ("left", 3)}, "Step.admissible has the int 3 in it"),
    "metrics": ({"metrics": {"a": "b"}}, "Step.metrics['a'] is the str 'b'"),
    "info": ({"info": None}, "Step.info is None, not a dict"),
}


class _Keys:
    def __repr__(self) -> str:
        raise ValueError


class _Text:
    """Has the text that a case gives it; its other parts can't be read."""

    def __init__(self, text: Callable[[], Any]):
        self._text = text

    def __str__(self) -> str:
        return self._text()

    __repr__ = __str__


class _Broken(dict):
    def items(self) -> Any:
        raise RuntimeError("no items")


class _Unreal(float):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("never")

    __le__ = __ge__ = __float__ = __eq__  # type: ignore[assignment]
    __hash__ = float.__hash__


def _deep(levels: int) -> Any:
    return [_deep(levels - 1)] if levels else []


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE
BAD_STEPS |= {  # values of the right type that no record holds
    "a huge reward": ({"reward": 10**400}, "Step.reward is the int of 1,329 bits, which float"),
    "a huger one": ({"reward": 10**9000}, "Step.reward is the int of"),
    "a huge score": ({"score": 10**400}, "Step.score is the int of"),
    "a huge metric": ({"metrics": {"a": 10**400}}, "Step.metrics['a'] is the int of"),
    "beyond float32": ({"reward": 1e300}, "Step.reward is 1e+300, beyond what float32 holds"),
    "a key that is no text": ({"metrics": {1: 2.0, "b": 1.0}}, "Step.metrics has the int 1 as a key, not a str"),
    "an object without a text": ({"reward": _Keys()}, "Step.reward is an object of _Keys, whose repr raises"),
    "a tuple as a key": ({"info": {(1, 2): 3}}, "Step.info has the tuple (1, 2) as a key"),
    "a tuple below": ({"info": {"a": [{(1, 2): 3}]}}, "Step.info holds a dict with the tuple (1, 2) as a key"),
    "a cycle": ({"info": CYCLE}, "or holds itself"),
    "depth": ({"info": {"a": _deep(200)}}, "Step.info has more than 32 levels"),
    "a number too long": ({"info": {"a": 10**9000}}, "can't be written as JSON"),
    "an object whose text raises": (
        {"info": {"a": [_Text(lambda: 1 / 0)]}},
        "Step.info holds an object of _Text, whose repr raises ZeroDivisionError, whose text raises ZeroDivisionError",
    ),
    "an object whose text is none": ({"info": {"a": _Text(lambda: 3)}}, "whose text raises TypeError"),
    "an object with a huge text": ({"info": {"a": _Text(lambda: LONG)}}, "an object of _Text of 262,145 characters"),
    "a huge text below": ({"info": {"a": [LONG]}}, "Step.info holds a str of 262,145, at most 262,144 are taken"),
    "a huge list": ({"info": {"a": [0] * 262_145}}, "Step.info holds a list of 262,145"),
    "a dict that can't be read": ({"info": {"a": _Broken(x=1)}}, "RuntimeError: no items"),
    "a number that can't be read": ({"reward": _Unreal(1.0)}, "which float(...) refuses: "),
}
BAD_OPENINGS: dict[str, tuple[Any, str]] = {
    "str": ("a door", "reset() returned the str ... return environments.Opening("),
    "task_text": ({"task_text": None}, "Opening.task_text is None, not a str"),
    "category": ({"category": 3}, "Opening.category is the int 3"),
    "task_key": ({"task_key": 7}, "Opening.task_key is the int 7"),
    "surrogate": ({"task_text": "\udfff"}, "Opening.task_text has the lone surrogate"),
    "actions": ({"admissible": (LONG,)}, "Opening.admissible has 262,145 characters"),
}
BAD = {("answer", case): bad for case, bad in BAD_STEPS.items()}
BAD |= {("opening", case): bad for case, bad in BAD_OPENINGS.items()}


@pytest.mark.parametrize(("part", "case"), BAD)
def test_a_value_that_breaks_the_contract_costs_its_episode_and_names_the_field(part: str, case: str) -> None:
    given, message = BAD[part, case]

    def changed(good: Any) -> Any:
        return replace(good, **given) if isinstance(given, dict) else given

    kinds = iter([type("Odd", (Returns,), {part: staticmethod(changed)}), ToyEnvironment])
    batch = open_batch(lambda: next(kinds)(), 2)
    opened = batch.reset([0, 1], ROWS[:2])
    odd, good = opened if part == "opening" else batch.step([0, 1], ["left", "left"])
    batch.close()
    assert isinstance(odd, Failure) and odd.kind == "error" and isinstance(good, Step | Opening)
    assert all(words in odd.message for words in message.split(" ... ")), odd.message


def test_what_python_and_numpy_mean_alike_is_put_into_the_declared_type() -> None:
    class Loose(Returns):
        answer = staticmethod(
            lambda good: replace(
                good,
                reward=np.float32(0.5),
                score=1,
                done=np.bool_(True),
                admissible=["a"],
                metrics={"n": np.int64(3), "seen": True},
            )
        )

    batch = open_batch(Loose, 1)
    batch.reset([0], ROWS[:1])
    (step,) = batch.step([0], ["left"])
    assert (step.reward, step.score, step.done, step.admissible) == (0.5, 1.0, True, ("a",))
    assert [type(value) for value in (step.reward, step.score, step.done)] == [float, float, bool]
    assert step.metrics == {"n": 3.0, "seen": 1.0} and type(step.metrics["n"]) is float
    batch.close()


def test_a_projection_and_an_ending_are_checked_too() -> None:
    class Odd(Returns):
        projection = staticmethod(lambda: ("left", True))
        ending = staticmethod(lambda: Ending(reward=float("inf")))

    batch = open_batch(Odd, 1)
    batch.reset([0], ROWS[:1])
    assert "project() returned the tuple" in batch.project("left").message
    assert "Ending.reward is inf" in batch.finish([0])[0].message
    for number, told in ((1, "names turn the int 1, and the episode has 1"), ("0", "the str '0'"), (-1, "-1")):
        Odd.ending = staticmethod(lambda number=number: Ending(turn_rewards={number: 1.0}))
        batch.reset([0], ROWS[:1])
        batch.step([0], ["left"])
        assert told in batch.finish([0])[0].message
    Odd.projection = staticmethod(lambda: Projection("a\ud800", True))
    assert "Projection.action has the lone surrogate" in batch.project("left").message
    Odd.projection = staticmethod(lambda: 1 / 0)
    assert "ZeroDivisionError" in batch.project("left").message
    batch.close()


def test_a_wrong_environment_is_refused_before_anything_is_played() -> None:
    class NoSeed(ToyEnvironment):
        def reset(self, task_id: str) -> Opening:  # type: ignore[override]
            return Opening("", "")

    with pytest.raises(TypeError, match=r"NoSeed.reset must take .* 'seed' by keyword; end its signature with \*\*"):
        open_batch(NoSeed, 2)

    class NoReset(PlainEnvironment):
        def step(self, action: str) -> Step:
            return Step("")

    for refuse in (as_environment, lambda factory: open_batch(factory, 2)):
        with pytest.raises(TypeError, match=r"environment NoReset has no reset\(\); write it, as"):
            refuse(NoReset)

    class NoPrompt(ToyEnvironment):
        prompt = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"environment NoPrompt: prompt must have a method render"):
        open_batch(NoPrompt, 1)

    class NoTurns(ToyEnvironment):
        max_turns = 0

    with pytest.raises(ValueError, match="environment NoTurns: max_turns must be an int of at least 1, got 0"):
        open_batch(NoTurns, 1)


def test_a_serial_batch_isolates_its_slots_and_closes_them() -> None:
    Moody.closed.clear()
    batch = SerialBatch([Moody() for _ in range(3)])
    assert isinstance(batch.reset([0, 1], [ROWS[0], {"seed": 1}])[1], Failure)
    answers = batch.step([0], ["raise"]) + batch.step([0], ["left"])
    assert [type(answer) for answer in answers] == [Failure, Step]
    batch.close()
    assert len(Moody.closed) == 3


def test_a_factory_may_bring_its_own_batch() -> None:
    class Own(SerialBatch):
        name = "own"

        def __init__(self, size: int, time_limit: float):
            super().__init__([ToyEnvironment() for _ in range(size)])
            self.name, self.time_limit = f"{size} {time_limit:g}", time_limit

        def metrics(self) -> dict[str, float]:
            return {"limit": self.time_limit}

    class Factory:
        def __call__(self) -> ToyEnvironment:
            return ToyEnvironment()

        def batch(self, size: int, time_limit: float) -> Own:
            return Own(size, time_limit)

    batch = open_batch(Factory(), 3, 7.0)
    assert batch.name == "3 7" and batch.metrics() == {"limit": 7.0}
    assert isinstance(batch.reset([2], ROWS[:1])[0], Opening)


def test_panel_has_an_order_and_a_checksum() -> None:
    rows = list(toy_dataset(5))
    panel = TaskPanel.of("toy", "test", rows)
    assert panel.checksum == TaskPanel.of("toy", "other name", rows).checksum and len(panel.checksum) == 16
    assert panel.checksum != TaskPanel.of("toy", "test", rows[::-1]).checksum
    assert panel.head(2).task_ids == ("toy/0", "toy/1") and panel.head(9) is panel
    for bad in ([], [{"name": 1}], [rows[0], rows[0]]):
        with pytest.raises(ValueError, match="panel"):
            TaskPanel.of("toy", "test", bad)


def test_plain_environment_needs_only_reset_and_step() -> None:
    class Door(PlainEnvironment):
        def reset(self, **columns: Any) -> Opening:
            return Opening(observation="A door.", task_text="leave.", admissible=("open it", "knock"))

        def step(self, action: str) -> Step:
            return Step("It is open.", done=action == "open it", won=action == "open it")

    door = Door()
    view = View("leave.", "A door.", ("open it", "knock"), (Record(1, "A wall.", "turn round", "A door."),), 1)
    shown = door.prompt.render(view, "Doors open.")
    assert [line for line in shown.splitlines() if "think" not in line] == [
        "Task: leave.",
        "Doors open.",
        "> turn round",
        "Now: A door.",
        "Actions: open it, knock",
    ]
    assert "Doors" not in door.prompt.render(view) and "\n\n" not in door.prompt.render(view)
    assert door.project("<think>a</think><action> Open It </action><action>b</action>") == Projection("Open It", True)
    assert door.project("open it") == Projection("", False)
