"""Rounds that are played while the round before them is trained."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from fakes.servers import Fault, ScriptedServer, Served, acting, make_served, same, served_config
from fakes.toy import toy_dataset
from fakes.trainers import DEFAULTS, make_trainer, with_sampler
from torch.utils.data import BatchSampler

from alignopsd_trl.commands.measure.training import FidelityCallback
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.environments.base import EnvironmentsDown
from alignopsd_trl.experimental.config import ContinuousConfig
from alignopsd_trl.experimental.server import ServerBackend
from alignopsd_trl.experimental.trainer import Upcoming
from alignopsd_trl.records import read_records
from alignopsd_trl.rollout.sampler import SamplerDown
from alignopsd_trl.runs.state import whole_checkpoints
from alignopsd_trl.training.order import EpochSampler
from alignopsd_trl.training.trl_policy import sampling_ratio


def made(folder: Path, server: ScriptedServer, ahead: int = 1, steps: int = 3, **options: Any) -> Any:
    """A trainer on a server."""
    trainer: Any = make_served(folder, server, max_steps=steps, self_check=False, rounds_ahead=ahead, **options)
    trainer.began = []
    if not ahead:
        return trainer
    inner = trainer.rollouts.begin

    def begin(asked: Any) -> None:
        trainer.began.append((asked.update, [row["task_id"] for row in asked.rows]))
        inner(asked)

    trainer.rollouts.begin = begin
    return trainer


def both(folder: Path, server: ScriptedServer, plain: ScriptedServer | None = None, **options: Any) -> tuple[Any, Any]:
    """Two trainers after the same rounds, played when they are asked for and ahead; ``options`` of the second alone are
    ``parts``, and where trajectories and evaluations go."""
    alone = ("parts", "eval_strategy", "eval_steps")
    shared = {name: value for name, value in options.items() if name not in alone}
    first = made(folder / "plain", plain or server, ahead=0, **shared)
    first.train()
    second = made(folder / "ahead", server, **options)
    second.train()
    assert same(first, second)
    return first, second


KNOWN = set[threading.Thread]()


@pytest.fixture(autouse=True)
def _known_threads() -> None:
    KNOWN.update(threading.enumerate())  # other tests' are not these tests' to end


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread not in KNOWN}


def ended() -> bool:
    """Whether threads of rounds, requests and environments end."""
    end = time.monotonic() + 10
    while threads() & {"ahead", "request", "worker"} and time.monotonic() < end:
        time.sleep(0.02)
    return not threads() & {"ahead", "request", "worker"}


# What is refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"use_vllm": False}, "ContinuousConfig does not go with use_vllm=False; set use_vllm=True"),
        ({"vllm_tensor_parallel_size": 2}, "does not go with vllm_tensor_parallel_size=2; set vllm_tensor_parallel"),
        ({"rounds_ahead": 1}, "rounds_ahead=1 does not go with vllm_mode='colocate'; set vllm_mode='server'"),
        (
            {"rounds_ahead": 1, "vllm_mode": "server", "vllm_importance_sampling_correction": False},
            "with vllm_importance_sampling_correction=False; set vllm_importance_sampling_correction=True",
        ),
        (
            {"rounds_ahead": 1, "vllm_mode": "server", "teacher_model_kind": "base"},
            "with teacher_model_kind='base'; set teacher_model_kind='live'",
        ),
        ({"rounds_ahead": 2}, "rounds_ahead=2: choose one of 0, 1"),
    ],
)
def test_what_it_needs_is_said_at_once(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ContinuousConfig(str(tmp_path), **DEFAULTS | options)


def test_the_trainer_takes_its_own_configuration_alone(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="args must be a ContinuousConfig, got AlignOPSDConfig"):
        make_trainer(tmp_path, kind=Served)


# Which tasks come next


@pytest.mark.parametrize("kinds", ["", "aababbaabab"])
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("steps", "iterations", "accumulated"), [(1, 1, 1), (4, 1, 4), (2, 2, 1), (2, 1, 4), (1, 1, 2)]
)
def test_tasks_are_known_before_the_data_loader_gives_them(
    processes: int, steps: int, iterations: int, accumulated: int, kinds: str
) -> None:
    """Over epochs, with a part of the tasks left over in each, and updates that end with an epoch."""
    order = EpochSampler(toy_dataset(11), 4, 4, steps * iterations, True, 3)
    order.kinds = kinds
    local, batches = 16 // processes, steps * iterations
    given, updates = [], []  # of each round, with the number of its first update
    for epoch in range(3):
        order.epoch = epoch
        inner = BatchSampler(order, local, drop_last=False)
        shards = [list(BatchSamplerShard(inner, processes, one)) for one in range(processes)]
        for batch in range(0, len(shards[0]), batches):
            given.append([shard[batch] for shard in shards])
            updates.append(epoch * -(-len(shards[0]) // accumulated) + batch // accumulated)
    for process in range(processes):
        upcoming = Upcoming(order, accumulated, process, processes)
        for first in (0, 3):  # from the start, and resumed behind the first round of the second epoch
            upcoming.begin(first // 2, (first % 2) * batches)
            for number in range(first, len(given) - 1):
                rows, later = upcoming.after()
                assert [row["task_id"] for row in rows] == [f"toy/{one}" for one in given[number + 1][process]]
                assert later == updates[number + 1] - updates[number]


# Whole runs


def test_the_same_rounds_are_trained_as_without(tmp_path: Path) -> None:
    """Responses of this server depend on prompt and seed alone."""
    with ScriptedServer(acting) as server, ScriptedServer(acting) as other:
        plain, ahead = both(tmp_path, server, other, tasks=7, save_trajectories=True)
        assert not other.orders and server.orders == ["/pause?mode=keep", "/resume"] * 2
    assert [update for update, _ in ahead.began] == [0, 1, 2], "the last round plays nothing ahead"
    assert all(tasks == [one for one in tasks[::4] for _ in range(4)] for _, tasks in ahead.began), "whole groups"
    frame = read_records(tmp_path / "ahead" / "trajectories")
    assert frame.groupby("step").task_id.apply(set).tolist() == [set(tasks) for _, tasks in ahead.began]
    assert "staleness/mean" not in plain.state.log_history[0] and ended()


@pytest.mark.full
def test_each_turn_knows_how_old_the_weights_were_that_sampled_it(tmp_path: Path) -> None:
    """Rounds that are played ahead are held back in their second turn until the next weights are there: what is asked
    before that is an update old, what is asked later is not. The update waits until all of them are held."""
    asked: list[tuple[int, int]] = []

    def hold(body: dict[str, Any], before: int) -> None:
        update, pushed = trainer.began[-1][0], trainer.pushes[-1]
        asked.append((update, pushed))
        second = server.bodies.count(body) and body["prompt"].count(comma) == 1
        end = time.monotonic() + 30
        while second and trainer.pushes[-1] < update and time.monotonic() < end:
            time.sleep(0.005)

    with ScriptedServer(acting, fault=hold) as server:
        trainer = made(tmp_path, server, save_trajectories=True)
        comma, inner = trainer.processing_class.convert_tokens_to_ids(","), trainer.compute_loss

        def once_all_are_held(*arguments: Any, **options: Any) -> Any:
            count = -1
            while count < len(asked):
                count = len(asked)
                time.sleep(0.5)
            return inner(*arguments, **options)

        trainer.compute_loss = once_all_are_held
        trainer.train()
    frame = read_records(tmp_path / "trajectories")
    assert (frame[frame.step == 0].staleness == 0).all()
    later = frame[frame.step > 0]
    assert (later.staleness == (later.turn < 2)).all() and {0, 1} == set(later.staleness)
    assert sorted(update - pushed for update, pushed in asked) == sorted(frame.staleness)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    for step, entry in enumerate(logged):
        found = frame[frame.step == step].staleness
        assert entry["staleness/mean"] == pytest.approx(found.mean()) and entry["staleness/max"] == found.max()


@pytest.mark.full
def test_a_resumed_run_trains_the_same_tasks_in_the_same_order(tmp_path: Path) -> None:
    """Rounds of two of five tasks: the run is taken up behind the first round of its second epoch."""
    options = {"tasks": 5, "steps": 5, "save_strategy": "steps", "save_steps": 3}
    with ScriptedServer(acting) as server:
        whole = made(tmp_path / "whole", server, **options)
        whole.train()
        first = made(tmp_path / "parts", server, **options | {"steps": 3})
        first.train()
        rest = made(tmp_path / "parts", server, policy=tmp_path / "parts" / "policy", **options)
        rest.train(resume_from_checkpoint=True)
    assert same(whole, first, rest)
    assert whole.began == [*first.began, *rest.began]


@pytest.mark.full
@pytest.mark.parametrize("steps", [2, 4])
def test_rounds_of_several_updates_and_updates_of_several_rounds(tmp_path: Path, steps: int) -> None:
    several = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "gradient_accumulation_steps": 1}
    parts = several if steps == 2 else {"steps_per_generation": 1, "gradient_accumulation_steps": 2}
    with ScriptedServer(acting) as server:
        _, ahead = both(tmp_path, server, steps=4, tasks=7, **parts)
    assert [update for update, _ in ahead.began] == ([0, 2] if steps == 2 else [0, 0, 1, 2, 2, 3])


@pytest.mark.full
def test_an_evaluation_and_a_measurement_wait_for_the_environments(tmp_path: Path) -> None:
    with ScriptedServer(acting, lambda body: 0.02) as server:
        parts = {"eval_dataset": toy_dataset(3), "callbacks": [FidelityCallback(every=1, rollouts=1)]}
        _, ahead = both(tmp_path, server, parts=parts, eval_strategy="steps", eval_steps=1)
    assert sum("eval_episodes/success" in entry for entry in ahead.state.log_history) == 3


@pytest.mark.full
def test_the_teacher_plays_ahead_too(tmp_path: Path) -> None:
    with ScriptedServer(acting) as server:
        both(tmp_path, server, method="align_opsd", privileged_siblings=1, save_trajectories=True)
    frame = read_records(tmp_path / "ahead" / "trajectories").drop_duplicates(["step", "task", "rollout"])
    assert frame.groupby("step").privileged.sum().tolist() == [2, 2, 2]


# Ends


@pytest.mark.parametrize("error", [EnvironmentsDown("the shop is closed"), ZeroDivisionError("a bug")])
def test_an_error_of_the_background_is_met_once_and_nothing_is_left(tmp_path: Path, error: Exception) -> None:
    with ScriptedServer(acting) as server:
        trainer = made(tmp_path, server)
        inner, met = trainer.rollouts.play_groups, []

        def play(asked: Any) -> Any:
            if asked.update == 1:
                met.append(threading.current_thread().name)
                raise error
            return inner(asked)

        trainer.rollouts.play_groups = play
        with pytest.raises(type(error), match=str(error)):
            trainer.train()
    assert met == ["ahead"] and trainer.state.global_step == 1 and ended()
    assert bool(whole_checkpoints(tmp_path)) == isinstance(error, EnvironmentsDown)


def test_ctrl_c_while_a_round_is_played_ahead_leaves_nothing(tmp_path: Path) -> None:
    def slow(body: dict[str, Any], before: int) -> str | None:
        return Fault.HANG if trainer.began[-1][0] == 1 else None

    with ScriptedServer(acting, fault=slow) as server:
        trainer = made(tmp_path, server)

        def interrupted(*arguments: Any, **options: Any) -> Any:
            server.lifted.set()
            raise KeyboardInterrupt

        trainer.compute_loss = interrupted
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    assert [update for update, _ in trainer.began] == [0, 1] and ended()


# Turns of older weights


@pytest.mark.parametrize(
    ("mode", "low", "ratios"),
    [
        ("token_mask", 0.5, [[1.0, 0.0, 1.5], [0.0, 1.0, 1.0]]),
        ("token_mask", None, [[1.0, 0.0, 1.5], [0.25, 1.0, 1.0]]),
        ("token_truncate", 0.5, [[1.0, 2.0, 1.5], [0.5, 1.0, 1.0]]),
        ("sequence_mask", None, [[0.0], [0.25]]),
    ],
)
def test_ratios_by_hand(mode: str, low: float | None, ratios: list[list[float]]) -> None:
    """Two turns of three tokens, bounds 0.5 and 2; the second's last token has no log-prob of its sampler."""
    names = ("mode", "clip_min", "clip_max")
    options = {f"vllm_importance_sampling_{name}": value for name, value in zip(names, (mode, low, 2.0), strict=True)}
    trainer: Any = SimpleNamespace(**options)
    difference = torch.tensor([[1.0, 4.0, 1.5], [0.25, 1.0, float("nan")]]).log()
    assert torch.allclose(sampling_ratio(trainer, difference), torch.tensor(ratios))


def test_they_are_not_held_against_the_trainer(tmp_path: Path) -> None:
    """By the self-check, which ends a run whose sampler has other weights."""
    trainer = make_trainer(tmp_path)
    with_sampler(trainer, offset=0.5)
    inner = trainer.rollouts.play

    def play(*asked: Any) -> Any:
        found = inner(*asked)
        for turn in (turn for one in found for turn in one.turns):
            turn.staleness = 1
        return found

    trainer.rollouts.play = play
    trainer.train()
    assert trainer.state.log_history[0]["self_check/sampler"] == 0


# The push


class _Alone(ProcessGroup):
    def __init__(self) -> None:
        self.process, self.processes = 0, 1

    def each(self, value: Any) -> list[Any]:
        return [value]


def test_servers_go_on_after_a_push_that_failed(tmp_path: Path) -> None:
    pushed: list[int] = []

    def push() -> int:
        pushed.append(len(pushed))
        if len(pushed) == 3:
            raise SamplerDown("the weights were not taken")
        return len(pushed) - 1

    with ScriptedServer(acting) as server:
        trainer: Any = SimpleNamespace()
        backend = ServerBackend(
            trainer, served_config(tmp_path, server, rounds_ahead=1), _Alone(), push, lambda *rest: {}
        )
        backend.push(0)
        assert not server.orders, "nothing is on its way"
        backend.push(1)
        with pytest.raises(SamplerDown, match="not taken"):
            backend.push(2)
        assert server.orders == ["/pause?mode=keep", "/resume"] * 2
        server.stop()
        with pytest.raises(SamplerDown, match=f"{server.address} does not pause .*start the server again and resume"):
            backend.push(3)
