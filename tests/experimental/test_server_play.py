"""Rounds of training whose responses come from servers, with delays and faults in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.servers import Fault, ScriptedServer, acting, make_served, same
from launching import TESTS, run_script

from alignopsd_trl.experimental.server import PATIENCE
from alignopsd_trl.records import read_records
from alignopsd_trl.rollout.sampler import SamplerDown
from alignopsd_trl.runs.state import whole_checkpoints


def uneven(body: dict[str, Any]) -> float:
    """Some responses take long."""
    return 0.02 * (body["seed"] % 4)


def played(folder: Path, server: ScriptedServer, **config: Any) -> Any:
    """A trainer after two rounds."""
    trainer = make_served(folder, server, max_steps=2, self_check=False, **config)
    trainer.train()
    return trainer


def as_text(ids: list[int]) -> str:
    return "".join(f"{number}," for number in ids)


@pytest.mark.full
def test_order_and_number_of_requests_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(acting) as quick, ScriptedServer(acting, uneven) as slow, ScriptedServer(acting) as third:
        plain = played(tmp_path / "plain", quick)
        assert same(plain, played(tmp_path / "slow", slow))
        monkeypatch.setitem(PATIENCE, "in_flight", 1)
        assert same(plain, played(tmp_path / "one", third))
        assert slow.most > 4 and third.most == 1
        assert plain.pushes == [0, 1], "each process asks by itself, but weights are pushed together, once a round"
        asked = [tuple(body["prompt"]) + (body["seed"],) for body in quick.bodies]
        assert len(set(asked)) == len(asked) > 16, "siblings and turns are sampled with seeds of their own"


@pytest.mark.full
def test_faults_that_pass_change_nothing(tmp_path: Path) -> None:
    def faults(body: dict[str, Any], before: int) -> str | None:
        kinds = (Fault.ERROR, Fault.GARBAGE, Fault.CLOSE, None)
        return kinds[body["seed"] % 4] if before == 0 else None

    with ScriptedServer(acting) as well, ScriptedServer(acting, fault=faults) as other:
        plain = played(tmp_path / "plain", well)
        assert same(plain, played(tmp_path / "faults", other))
        assert len(other.bodies) > len(well.bodies)


def test_a_server_that_comes_back_within_the_round_costs_nothing(tmp_path: Path) -> None:
    def leaving(body: dict[str, Any]) -> list[int]:
        if len(away.bodies) == 6:
            away.away(0.5)
        return acting(body)

    with ScriptedServer(acting) as well, ScriptedServer(leaving) as away:
        assert same(played(tmp_path / "plain", well), played(tmp_path / "away", away))


def test_a_request_that_fails_for_good_costs_its_episode_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(acting, fault=lambda body, before: Fault.ERROR if body["seed"] % 7 == 0 else None) as server:
        monkeypatch.setitem(PATIENCE, "tries", 2)
        trainer = played(tmp_path, server, save_trajectories=True)
        poisoned = {body["seed"] for body in server.bodies if body["seed"] % 7 == 0}
    frame = read_records(tmp_path / "trajectories")
    failed = frame[frame.stop == "environment error"].drop_duplicates(["step", "task_id", "rollout"])
    assert trainer.state.global_step == 2 and 0 < len(failed) == len(poisoned)
    assert failed.message.str.contains("no response could be sampled: no response after 2 tries").all()


def test_servers_gone_for_good_end_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    with ScriptedServer(acting) as server:
        trainer = make_served(tmp_path, server, max_steps=3, self_check=False, vllm_server_timeout=0.5)
        inner = trainer.rollouts.play_groups

        def play(asked: Any) -> Any:
            if asked.update == 1:
                server.stop()
            return inner(asked)

        trainer.rollouts.play_groups = play
        with pytest.raises(SamplerDown, match=f"no answer from {server.address} for 0.5 s; start the server again"):
            trainer.train()
    assert whole_checkpoints(tmp_path)[-1].name == "checkpoint-1"


def test_thinking_and_panels_come_from_the_servers_too(tmp_path: Path) -> None:
    with ScriptedServer(acting, fault=lambda body, before: Fault.REFUSE if body["seed"] % 5 == 0 else None) as server:
        trainer = played(tmp_path, server, method="align_opsd", teacher_max_completion_length=10)
        limits = {body["max_tokens"] for body in server.bodies}
    assert limits == {10, 12} and trainer.state.global_step == 2


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes saved."""
    target = tmp_path_factory.mktemp("two")
    run_script(TESTS / "serving_processes.py", target, processes=2)
    return target


def load(folder: Path, name: str) -> list[Any]:
    return [torch.load(folder / f"{name}_{rank}.pt", weights_only=False) for rank in range(2)]


def turns(rounds: list[dict[str, torch.Tensor]]) -> list[tuple[list[int], list[int]]]:
    """Prompts and responses of the trained turns of all rounds."""
    found = []
    for rows in rounds:
        for row in (rows["tool_mask"].sum(1) > 0).nonzero().flatten().tolist():
            prompt, response = (
                rows[f"{part}_ids"][row][rows[f"{part}_mask"][row].bool()].tolist() for part in ("prompt", "completion")
            )
            found.append((prompt, response))
    return sorted(found)


@pytest.mark.full
def test_two_processes_that_ask_by_themselves_play_as_one(two: Path, tmp_path: Path) -> None:
    ranks, ahead = load(two, "well"), load(two, "well_ahead")
    with ScriptedServer(acting) as server:
        options = {"method": "align_opsd", "beta": 0.02, "per_device_train_batch_size": 16}
        single = played(tmp_path, server, **options)
    assert turns([rows for rank in ranks for rows in rank]) == turns(single.seen_rows)
    for one, other in zip([*ranks[0], *ranks[1]], [*ahead[0], *ahead[1]], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one), "with rounds_ahead too"


@pytest.mark.full
@pytest.mark.parametrize("name", ["gone", "gone_ahead"])
def test_a_server_that_one_process_has_lost_ends_both_with_its_message_and_a_checkpoint(two: Path, name: str) -> None:
    messages = load(two, name)
    assert messages[0] == messages[1] and "; start the server again" in messages[0]
    assert whole_checkpoints(two / name)[-1].name == "checkpoint-1"
