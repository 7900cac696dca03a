"""Environments that are dear: at most so many are alive, and the other episodes wait."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.corridor import Corridor, Flips, corridor_tasks, player
from fakes.lockstep_cases import on_processes

from alignopsd_trl.environments import Failure, RunningScore, Step, open_batch
from alignopsd_trl.rollout.episode import SiblingsDiffer, episode_seeds
from alignopsd_trl.turns import Trajectory


class Dear(Corridor):
    alive: int = 0
    made: int = 0
    most: int = 0

    def __init__(self) -> None:
        kind = type(self)
        kind.made, kind.alive = kind.made + 1, kind.alive + 1
        kind.most = max(kind.most, kind.alive)

    def close(self) -> None:
        type(self).alive -= 1


def _kind(**declared: Any) -> type[Dear]:
    return type("Dear", (Dear,), declared)


def _played(kind: type[Dear], agree: Any = None, siblings: int = 4) -> list[Trajectory]:
    rows = [row for row in corridor_tasks(3) for _ in range(siblings)]
    found = player(Flips(), kind, slots=12)
    if agree is not None:
        found.agree = agree
    seeds = [episode_seeds(row["task_id"], 0, place) for place, row in enumerate(rows)]
    try:
        return found.play(rows, seeds, [row["task_id"] for row in rows])
    finally:
        found.environments.close()


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("most", [1, 5, 12])
def test_no_more_are_alive_than_the_class_allows(most: int, concurrent: bool) -> None:
    kind = _kind(most_alive=most, concurrent=concurrent)
    played = _played(kind)
    assert kind.made == kind.most == most and kind.alive == 0
    assert [len(one.turns) for one in played] == [3] * 12
    assert [one.rollout for one in played] == ["0000", "0001", "0002", "0003"] * 3


def test_siblings_are_compared_although_they_wait() -> None:
    class Counting(Dear):
        opened: int = 0

        def reset(self, task_id: str, need: int, **columns: Any) -> Any:
            type(self).opened += 1
            return super().reset(task_id, need + type(self).opened // 3)

    with pytest.raises(SiblingsDiffer, match="Counting"):
        _played(type("Counting", (Counting,), {"most_alive": 2}))


def test_processes_with_shares_of_other_lengths_wait_for_each_other() -> None:
    def play(process: int, agree: Any) -> list[Trajectory]:
        return _played(_kind(most_alive=3), agree, siblings=1 + 2 * process)

    few, many = on_processes(2, play)
    assert [len(one.turns) for one in [*few, *many]] == [3] * 12


def test_one_that_dies_costs_its_episode_and_is_replaced() -> None:
    class Dying(Dear):
        def step(self, action: str) -> Any:
            if type(self).made <= 2:
                raise ConnectionError("the world died")
            return super().step(action)

    kind = type("Dying", (Dying,), {"most_alive": 2})
    played = _played(kind)
    assert [one.failed for one in played].count(True) == 2 and "the world died" in played[0].message
    assert kind.most <= 3 and kind.alive == 0


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "four"])
def test_a_number_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="most_alive=.*at least 1"):
        open_batch(_kind(most_alive=wrong), 4)


def test_rewards_of_a_running_score_add_up_to_it() -> None:
    score = RunningScore(50)
    gains = [score.gain(one) for one in (0, 10, 5, 50)]
    assert gains == pytest.approx([0, 0.2, -0.1, 0.9]) and score.share == 1
    assert RunningScore(100, start=17).gain(67) == pytest.approx(0.5)


def test_a_milestone_is_text() -> None:
    def stepped(milestone: Any) -> Any:
        kind = _kind(step=lambda self, action: Step("on", milestone=milestone))
        batch = open_batch(kind, 1)
        batch.reset([0], [{"seed": 0, **corridor_tasks(1)[0]}])
        return batch.step([0], ["right"])[0]

    assert stepped("the key is found").milestone == "the key is found"
    assert stepped("").milestone is None
    found = stepped(3)
    assert isinstance(found, Failure) and "Step.milestone" in found.message
