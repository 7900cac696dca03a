"""What the rows that compare turns of one state, or those before one milestone, keep whatever the numbers are. Their
values: test_baseline_vectors. Here the state z is a milestone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tables import SEEDS, draw
from fakes.trainers import make_config

from alignopsd_trl.methods import get_method
from alignopsd_trl.methods.base import Credit
from alignopsd_trl.methods.state_credit import START, history_groups, labels_before, state_labels
from alignopsd_trl.turns import Thought, Trajectory, Turn, TurnBatch

STATES = ("gigpo", "hgpo", "graphgpo", "gagpo", "beacon")
MILESTONES = {"z": "at z"}


def episode(name: tuple[str, str], states: str, rewards: list[float], **of_it: Any) -> Trajectory:
    turns = [
        Turn(number, "", [1], [], [2, 3], "", Thought("", ""), "", True, state, reward, milestone=MILESTONES.get(state))
        for number, (state, reward) in enumerate(zip(states, rewards, strict=True))
    ]
    return Trajectory({}, *name, turns=turns, reward=sum(rewards), **of_it)


def some_batch(seed: int) -> TurnBatch:
    """Two tasks of four rollouts of one to six turns over four states, half of them won at their last turn."""

    def number(high: int) -> int:
        return int(torch.randint(high, (1,), generator=draw_))

    draw_, episodes = draw(seed), []
    for task in ("a", "b"):
        for sibling in range(4):
            length = 1 + number(6)
            states = "".join("wxyz"[number(4)] for _ in range(length))
            episodes.append(episode((task, f"r{sibling}"), states, [0.0] * (length - 1) + [float(sibling % 2)]))
    return TurnBatch.of(episodes, pad_id=0)


def reordered(batch: TurnBatch, rows: torch.Tensor, **changes: Any) -> TurnBatch:
    columns = {
        name: value[rows] for name, value in vars(batch).items() if isinstance(value, torch.Tensor) and len(value)
    }
    return replace(batch, turns=[batch.turns[row] for row in rows.tolist()], **columns | changes)


def assign(name: str, batch: TurnBatch, folder: Path, **config: Any) -> Credit:
    return get_method(name)(make_config(folder, **config)).assign(batch, None, 0)


def first_column(name: str, batch: TurnBatch, folder: Path, **config: Any) -> torch.Tensor:
    return assign(name, batch, folder, **config).advantages[:, 0]


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("seed", SEEDS)
def test_order_and_names_do_not_matter_and_tasks_do_not_meet(name: str, seed: int, tmp_path: Path) -> None:
    batch = some_batch(seed)
    plain = first_column(name, batch, tmp_path)
    assert plain.any()
    order = torch.randperm(len(batch), generator=draw(seed))
    renamed = {"task": 9 - batch.task[order], "rollout": 99 - batch.rollout[order]}
    for changes in ({}, renamed):
        found = first_column(name, reordered(batch, order, **changes), tmp_path)
        torch.testing.assert_close(found, plain[order], atol=1e-6, rtol=0)
    alone = (batch.task == 1).nonzero().squeeze(-1)
    found = first_column(name, reordered(batch, alone), tmp_path)
    torch.testing.assert_close(found, plain[alone], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["hgpo", "graphgpo", "gagpo"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_unit_of_rewards_does_not_matter_unless_they_are_unscaled(name: str, seed: int, tmp_path: Path) -> None:
    batch = some_batch(seed)
    tenfold = replace(batch, reward=10 * batch.reward, turn_reward=10 * batch.turn_reward)
    scaled = [first_column(name, one, tmp_path) for one in (batch, tenfold)]
    torch.testing.assert_close(*scaled, atol=1e-2, rtol=1e-3)  # 1e-6 beside a deviation of 1e-5
    plain, found = (first_column(name, one, tmp_path, scale_rewards="none") for one in (batch, tenfold))
    torch.testing.assert_close(found, 10 * plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", STATES)
def test_nothing_is_learnt_from_equal_rollouts_without_reward_or_from_one_alone(name: str, tmp_path: Path) -> None:
    equal = TurnBatch.of([episode(("t", f"r{n}"), "xyx", [0.0, 0.0, 1.0]) for n in range(3)], 0)
    lost = TurnBatch.of([episode(("t", f"r{n}"), "xyz"[: n + 1], [0.0] * (n + 1)) for n in range(3)], 0)
    alone = TurnBatch.of([episode(("t", "r0"), "xyxy", [0.0, 1.0, 0.0, 1.0])], 0)
    for batch in {"graphgpo": (lost, alone), "beacon": (equal, alone)}.get(name, (equal, lost, alone)):
        assert not first_column(name, batch, tmp_path).any()


def test_the_graph_credits_the_shorter_way_and_the_good_turn_of_a_lost_rollout(tmp_path: Path) -> None:
    """From x, y is one turn from the goal and w is not; r1 goes to y and is lost there."""
    episodes = [("r0", "xyz", 1.0), ("r1", "xyw", 0.0), ("r2", "xwx", 0.0)]
    batch = TurnBatch.of([episode(("t", name), states, [0.0, 0.0, won]) for name, states, won in episodes], 0)
    steps = assign("graphgpo", batch, tmp_path).trace["step_advantage"]
    to_y, to_w = steps[4], steps[7]
    assert to_y == steps[1] > 0 > to_w and steps[5] < 0 < steps[2]


def test_rewards_count_where_they_fall(tmp_path: Path) -> None:
    """Two rollouts with one sum: the one that earns it at its first turn is credited there."""
    early = episode(("t", "r0"), "xy", [1.0, 0.0])
    late = episode(("t", "r1"), "zy", [0.0, 1.0])
    batch = TurnBatch.of([early, late], 0)
    for name in ("hgpo", "graphgpo", "gagpo"):
        found = first_column(name, batch, tmp_path)
        assert found[0] > 0 > found[2], name


def test_history_tells_turns_apart_and_first_turns_have_none() -> None:
    batch = TurnBatch.of([episode(("t", "r0"), "xyxy", [0.0] * 4), episode(("t", "r1"), "yxyx", [0.0] * 4)], 0)
    state, after = state_labels(batch)
    assert state.tolist() == [START, 1, 2, 1, START, 2, 1, 2] and after.tolist() == [1, 2, 1, 2, 2, 1, 2, 1]
    assert labels_before(state, batch.groups, 2, -1).tolist() == [-1, -1, 0, 1, -1, -1, 0, 2]
    now, one, two = history_groups(batch.groups, state, 2)
    assert len(now.unique()) == 3 and one[[0, 4]].tolist() == [-1, -1]
    assert one[3] == one[6] != one[1]  # x after y, and x after the start
    assert len({int(number) for number in one[[1, 2, 3, 5, 6, 7]]}) == 4
    assert two[[0, 1, 4, 5]].tolist() == [-1] * 4 and len(set(two[[2, 3, 6, 7]].tolist())) == 4


@pytest.mark.parametrize("name", STATES)
def test_what_the_teacher_played_is_imitated_and_never_pushed_away(name: str, tmp_path: Path) -> None:
    played = [("xyz", 1.0, True), ("xyw", 0.0, True), ("xwx", 0.0, False), ("yzx", 1.0, False)]
    batch = TurnBatch.of(
        [
            episode(("t", f"r{n}"), states, [0.0, 0.0, reward], privileged=privileged)
            for n, (states, reward, privileged) in enumerate(played)
        ],
        pad_id=0,
    )
    found = first_column(name, batch, tmp_path)
    everyone = first_column(name, replace(batch, privileged=None), tmp_path)
    assert (everyone[:6] < 0).any() and (found[:6] >= 0).all() and torch.equal(found[6:], everyone[6:])


# Milestones


@pytest.mark.parametrize("options", [{}, {"attempts": True}])
def test_without_milestones_beacon_is_grpo(options: dict[str, Any], tmp_path: Path) -> None:
    batch = some_batch(3)
    for turn in batch.turns:
        turn.milestone = None
    found, plain = (
        first_column(name, batch, tmp_path, method_options=of_it, invalid_action_penalty=0.1)
        for name, of_it in (("beacon", options), ("grpo", None))
    )
    assert torch.equal(found, plain) and plain.any()


def test_the_shorter_way_to_a_milestone_is_credited_in_a_lost_rollout_too(tmp_path: Path) -> None:
    """z takes r0 one turn and r1 three; r2 never comes there. All are lost."""
    episodes = [episode(("t", f"r{n}"), states, [0.0] * len(states)) for n, states in enumerate(("zx", "xyz", "xx"))]
    batch = TurnBatch.of(episodes, 0)
    found = assign("beacon", batch, tmp_path, scale_rewards="none", method_options={"gamma": 0.5})
    assert found.trace["segment_reward"] == [10.0, 0.0, 2.5, 5.0, 10.0, 0.0, 0.0]
    mean = 27.5 / 4
    wanted = torch.tensor([10 - mean, 0.0, 2.5 - mean, 5 - mean, 10 - mean, 0.0, 0.0])
    torch.testing.assert_close(found.advantages[:, 0], wanted)
    assert found.metrics["credit/segment_share"] == 4 / 7
    code = assign("beacon", batch, tmp_path, method_options={"attempts": True}).trace["segment_advantage"]
    assert code[1] == 0.0 and code[5] == code[6] < 0.0, "one turn alone has one milestone behind it; r2 only attempts"


@pytest.mark.parametrize("attempts", [False, True])
def test_the_unit_of_a_milestone_only_matters_beside_unscaled_rewards(attempts: bool, tmp_path: Path) -> None:
    batch = some_batch(5)

    def steps(reward: float, **config: Any) -> torch.Tensor:
        options = {"milestone_reward": reward, "attempts": attempts}
        return torch.tensor(
            assign("beacon", batch, tmp_path, method_options=options, **config).trace["segment_advantage"]
        )

    torch.testing.assert_close(steps(1.0), steps(100.0), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(100 * steps(1.0, scale_rewards="none"), steps(100.0, scale_rewards="none"))
    assert steps(1.0).any() and not steps(0.0).any()
