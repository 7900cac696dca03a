from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from alfworld_toys import DiaryFactory

from alignopsd_trl.environments.alfworld import ProcessBatch
from alignopsd_trl.environments.base import EnvironmentBatch, Failure, Opening


@pytest.fixture
def pool(tmp_path):
    made = []

    def make(size=6, time_limit=30.0, workers=2, **options) -> ProcessBatch:
        made.append(ProcessBatch(DiaryFactory(), size, time_limit, workers, **options))
        batch = made[-1]
        batch.reset(range(size), [{"task_id": str(tmp_path / f"game{slot}")} for slot in range(size)])
        return batch

    yield make
    for batch in made:
        batch.close()


def texts(outcomes):
    return [outcome.kind if isinstance(outcome, Failure) else outcome.observation for outcome in outcomes]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def test_answers_come_in_the_order_of_the_slots(pool):
    batch: EnvironmentBatch = pool(size=5)
    assert batch.history_length == 1 and batch.max_turns == 7 and batch.project("x").action == "x"
    assert texts(batch.step([4, 0, 2], ["e", "a", "c"])) == ["e", "a", "c"]
    assert texts(batch.step([0, 1, 2, 3, 4], list("vwxyz"))) == ["a v", "w", "c x", "y", "e z"]
    assert len({step.info["pid"] for step in batch.step(range(5), ["-"] * 5)}) == 2
    openings = batch.reset([3], [{"task_id": "again"}])
    assert isinstance(openings[0], Opening) and openings[0].task_text == "again"
    assert texts(batch.step([3, 4], ["1", "2"])) == ["1", "e z - 2"]


def test_an_environment_that_raises_loses_its_own_episode(pool):
    batch = pool()
    outcomes = batch.step([0, 1, 2], ["a", "raise", "c"])
    assert texts(outcomes) == ["a", "error", "c"] and "oops" in outcomes[1].message
    assert texts(batch.step([0, 1], ["b", "b"])) == ["a b", "error"]
    assert texts(batch.reset([1, 2], [{"task_id": "new"}, {"task_id": "x", "broken": True}])) == [
        "day one of new",
        "error",
    ]
    assert texts(batch.step([1, 2, 0], ["c", "c", "c"])) == ["c", "error", "a b c"]


def test_a_worker_that_dies_in_a_batch_loses_the_episode_it_was_at_and_no_other(pool):
    batch = pool()
    batch.step(range(6), list("abcdef"))
    before = batch.pids
    assert texts(batch.step(range(6), ["1", "1", "die", "1", "1", "1"])) == ["a 1", "b 1", "error", "d 1", "e 1", "f 1"]
    assert texts(batch.step([0, 2, 4], ["2", "2", "2"])) == ["a 1 2", "error", "e 1 2"]
    assert len(set(batch.pids) & set(before)) == 1 and len(batch.pids) == 2


@pytest.mark.full
def test_a_hanging_step_is_ended_and_the_rest_of_the_batch_goes_on(pool):
    batch = pool(time_limit=2.0)
    batch.step(range(6), list("abcdef"))
    start = time.monotonic()
    outcomes = batch.step(range(6), ["1", "1", "sleep", "1", "1", "1"])
    assert texts(outcomes) == ["a 1", "b 1", "timeout", "d 1", "e 1", "f 1"] and "2 s" in outcomes[2].message
    assert time.monotonic() - start < 60
    assert texts(batch.step([0, 1, 4], ["2", "2", "2"])) == ["a 1 2", "b 1 2", "e 1 2"]


@pytest.mark.full
def test_a_worker_killed_from_outside_between_calls_costs_nothing(pool):
    batch = pool()
    batch.step(range(6), list("abcdef"))
    for pid in batch.pids:
        os.kill(pid, signal.SIGKILL)
    assert texts(batch.step(range(6), ["1"] * 6)) == [f"{letter} 1" for letter in "abcdef"]


def test_a_worker_killed_from_outside_during_a_call_costs_nothing(pool):
    batch = pool()
    assert texts(batch.step(range(6), ["a", "b", "die once", "d", "e", "f"])) == ["a", "b", "die once", "d", "e", "f"]
    victim = batch.pids[0]
    threading.Timer(0.02, os.kill, (victim, signal.SIGKILL)).start()
    deadline, rounds = time.monotonic() + 30, 0
    while victim in batch.pids and time.monotonic() < deadline:
        last = texts(batch.step(range(6), ["1"] * 6))
        rounds += 1
    assert victim not in batch.pids
    assert last == [f"{first}{' 1' * rounds}" for first in ("a", "b", "die once", "d", "e", "f")]


@pytest.mark.full
def test_a_frozen_worker_is_replaced(pool):
    batch = pool(time_limit=2.0)
    batch.step(range(6), list("abcdef"))
    os.kill(batch.pids[0], signal.SIGSTOP)
    outcomes = texts(batch.step(range(6), ["1"] * 6))
    assert outcomes.count("timeout") == 1
    assert [text for text in outcomes if text != "timeout"] == [f"{x} 1" for x in "abcdef" if f"{x} 1" in outcomes]


@pytest.mark.full
def test_recycled_workers_keep_their_live_episodes(pool):
    batch = pool(size=4, recycle_after=6)
    batch.step(range(4), list("abcd"))
    before = set(batch.pids)
    for number in range(10):
        batch.reset([0, 1], [{"task_id": f"x{number}"}] * 2)
    assert not before & set(batch.pids)
    assert texts(batch.step(range(4), ["1"] * 4)) == ["1", "1", "c 1", "d 1"]


@pytest.mark.full
def test_a_worker_that_can_not_start_is_one_clear_error():
    for failure, told in (("no space left", "OSError: no space left"), ("end", "EOFError: end")):
        with pytest.raises(RuntimeError, match=f"worker can't start: {told}"):
            ProcessBatch(DiaryFactory(failure), 2, workers=2)
    with pytest.raises(RuntimeError, match="ended before it was ready .exit status 3"):
        ProcessBatch(DiaryFactory("exit"), 2, workers=1)


def test_impossible_arguments_are_refused():
    for options in ({"size": 0}, {"size": 1, "workers": 0}, {"size": 1, "time_limit": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            ProcessBatch(DiaryFactory(), **options)


def test_closing_leaves_no_process_and_no_folder(pool):
    batch = pool()
    pids, folder = batch.pids, Path(batch._folder)
    assert folder.is_dir()
    batch.close()
    assert not any(map(alive, pids)) and not folder.exists()
    batch.close()


PARENT = """
    import sys, time
    sys.path[:0] = {paths!r}
    from alfworld_toys import DiaryFactory
    from alignopsd_trl.environments.alfworld import ProcessBatch
    batch = ProcessBatch(DiaryFactory(), 2, workers=2)
    batch.reset([0, 1], [dict(task_id="a"), dict(task_id="b")])
    print(*batch.pids, batch._folder, flush=True)
    batch.step([0, 1], ["a", "sleep"])
"""


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_orphans_when_the_parent_is_interrupted_or_killed_in_a_step(number):
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    script = textwrap.dedent(PARENT).format(paths=paths)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    *pids, folder = parent.stdout.readline().split()
    assert len(pids) == 2 and all(map(alive, pids))
    parent.send_signal(number)
    errors = parent.communicate(timeout=60)[1]
    wait_until(lambda: not any(map(alive, pids)) and not Path(folder).exists())
    assert (number == signal.SIGINT) == ("KeyboardInterrupt" in errors)


@pytest.mark.full
def test_a_pool_can_be_used_on_after_an_interrupt(pool):
    batch = pool(time_limit=600)
    batch.step(range(6), list("abcdef"))
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        batch.step(range(6), ["1", "1", "sleep", "1", "1", "1"])
    after = texts(batch.step(range(6), ["2"] * 6))
    assert after[2] == "c 2" and all(text.endswith(" 2") for text in after)
