"""An episode depends on its row and its actions alone, whoever plays beside it."""

from __future__ import annotations

import copy
import random
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from alignopsd_trl.environments import (
    Failure,
    Opening,
    PlainEnvironment,
    Projection,
    RandomStream,
    Step,
    open_batch,
    validation,
)


class Dice(PlainEnvironment):
    """A game that draws from the process's generators, and seeds them when it begins."""

    def reset(self, number: int, **columns: Any) -> Opening:
        self.random = RandomStream(number)
        with self.random.lent():
            random.seed(number)
            return Opening(self._thrown(), "throw")

    def step(self, action: str) -> Step:
        with self.random.lent():
            return Step(self._thrown())

    def _thrown(self) -> str:
        return f"{random.random()} {np.random.normal()} {np.random.permutation(9)}"


def _trace(one: Dice, others: list[Dice]) -> list[str]:
    shown = [one.reset(number=3).observation]
    for turn in range(4):
        for place, other in enumerate(others):
            other.reset(number=place) if turn % 2 else other.step("throw")
        random.seed(turn)
        np.random.seed(turn)
        shown.append(one.step("throw").observation)
    return shown


def test_an_episode_alone_is_the_one_beside_others() -> None:
    others = [Dice() for _ in range(4)]
    for other in others:
        other.reset(number=7)
    random.seed(99)
    alone = _trace(Dice(), [])
    random.seed(11)
    np.random.seed(11)
    assert _trace(Dice(), others) == alone and len(set(alone)) == 5
    with closing(open_batch(Dice, 2)) as batch:
        opened = batch.reset([0, 1], [{"number": 3, "seed": 1}, {"number": 8, "seed": 2}])
        shown = [opened[0].observation, *(batch.step([0, 1], ["a", "b"])[0].observation for _ in range(4))]
    assert shown == alone


def test_the_process_draws_as_if_nobody_had_played() -> None:
    random.seed(5)
    np.random.seed(5)
    np.random.normal()  # half of a pair
    expected = _state()
    game = Dice()
    game.reset(number=1)
    game.step("throw")
    assert _state() == expected


def _state() -> tuple[Any, ...]:
    drawn: Any = np.random.get_state(legacy=False)
    return random.getstate(), str(drawn)


def test_a_copied_stream_draws_the_same_and_on_its_own() -> None:
    def drawn(stream: RandomStream) -> list[float]:
        with stream.lent():
            return [random.random(), np.random.random()]

    stream = RandomStream(3)
    drawn(stream)
    other = copy.deepcopy(stream)
    following = [drawn(stream), drawn(stream)]
    assert [drawn(other), drawn(other)] == following and following[0] != following[1]


def test_a_call_that_was_given_up_leaves_the_generators_to_those_who_have_them() -> None:
    late, other = RandomStream(1), RandomStream(2)
    with RandomStream(0).lent():  # for the process's own states
        hanging = late.lent()
        hanging.__enter__()
        other.install()
        expected = random.getstate()
        hanging.__exit__(None, None, None)
        assert random.getstate() == expected


class Slow(PlainEnvironment):
    """What it plays takes longer to make than a call may take."""

    made: set[int] = set()

    @staticmethod
    def prepare_row(number: int, **columns: Any) -> None:
        time.sleep(0.4)
        Slow.made.add(1 // number)

    def reset(self, number: int, **columns: Any) -> Opening:
        return Opening(str(1 // number in Slow.made), str(1 // number))

    def step(self, action: str) -> Step:
        return Step("")


@pytest.mark.parametrize("concurrent", [False, True])
def test_what_a_row_needs_is_made_before_the_time_of_its_reset(
    concurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slow, "concurrent", concurrent)
    with closing(open_batch(Slow, 2, time_limit=0.3)) as batch:
        first, second = batch.reset([0, 1], [{"number": 1, "seed": 0}, {"number": 0, "seed": 0}])
    assert isinstance(first, Opening) and first.observation == "True"
    assert isinstance(second, Failure) and "ZeroDivisionError" in second.message


def test_a_row_that_is_never_prepared_costs_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Slow):
        @staticmethod
        def prepare_row(number: int, **columns: Any) -> None:
            time.sleep(60 if number == 2 else 0)
            Slow.made.add(number)

        def reset(self, number: int, **columns: Any) -> Opening:
            return Opening(str(list(Slow.made).index(number)), "")

    Slow.made.clear()
    monkeypatch.setattr(validation, "PREPARING", 0.3)
    with closing(open_batch(Hanging, 2, time_limit=5.0)) as batch:
        hung, ready = batch.reset([0, 1], [{"number": 2, "seed": 0}, {"number": 3, "seed": 0}])
    assert isinstance(hung, Failure) and isinstance(ready, Opening)


@pytest.mark.parametrize("part", ["<action>", "<think><action>", "<action> "])
def test_responses_are_parsed_in_linear_time(part: str) -> None:
    began = time.process_time()
    assert not Slow().project(part * 50_000).valid
    assert time.process_time() - began < 2
    assert Slow().project(f"a</action><ACTION> b</action>{part}") == Projection("b", True)
