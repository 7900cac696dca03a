from __future__ import annotations

import time

import pytest
from toy import ToyEnvironment, toy_dataset

from environments import Failure, Opening, Step, TaskPanel, load, open_batch

ROWS = [{**row, "seed": 2 + 5 * number} for number, row in enumerate(toy_dataset(4))]


def test_batch_plays_like_single_environments() -> None:
    batch = open_batch(ToyEnvironment, 4)
    openings = batch.reset(range(4), ROWS)
    single = [ToyEnvironment() for _ in ROWS]
    assert openings == [one.open(row) for one, row in zip(single, ROWS, strict=True)]
    assert isinstance(openings[0], Opening) and openings[0].task_text == "zero"
    assert batch.step([2, 0], ["up", "left"]) == [single[2].step("up"), single[0].step("left")]
    batch.close()


class Moody(ToyEnvironment):
    def step(self, action: str) -> Step:
        if action == "raise":
            raise OSError("no shop")
        if action == "hang":
            time.sleep(5)
        return super().step(action)


def test_errors_and_timeouts_cost_their_own_slot_and_the_slot_recovers() -> None:
    batch = open_batch(Moody, 4, time_limit=0.3)
    batch.reset(range(4), ROWS)
    answers = batch.step(range(4), ["left", "raise", "hang", "left"])
    assert isinstance(answers[0], Step) and isinstance(answers[3], Step)
    assert answers[1] == Failure("error", "OSError: no shop")
    assert answers[2].kind == "timeout" and "0.3 s" in answers[2].message
    assert all(isinstance(opening, Opening) for opening in batch.reset([1, 2], ROWS[:2]))
    assert isinstance(batch.step([2], ["left"])[0], Step)
    batch.close()


def test_a_factory_may_bring_its_own_batch() -> None:
    class Factory:
        def __call__(self) -> ToyEnvironment:
            return ToyEnvironment()

        def batch(self, size: int, time_limit: float) -> str:
            return f"{size} {time_limit}"

    assert open_batch(Factory(), 3, 7.0) == "3 7.0"


def test_panel_has_an_order_and_a_checksum() -> None:
    rows = list(toy_dataset(5))
    panel = TaskPanel.of("toy", "test", rows)
    assert panel.checksum == TaskPanel.of("toy", "other name", rows).checksum and len(panel.checksum) == 16
    assert panel.checksum != TaskPanel.of("toy", "test", rows[::-1]).checksum
    assert panel.head(2).task_ids == ("toy/0", "toy/1") and panel.head(9) is panel
    for bad in ([], [{"name": 1}], [rows[0], rows[0]]):
        with pytest.raises(ValueError, match="panel"):
            TaskPanel.of("toy", "test", bad)


def test_unknown_environment_is_named() -> None:
    with pytest.raises(ValueError, match="'casino'.*webshop"):
        load("casino")
