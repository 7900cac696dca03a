from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.corridor import (
    Climb,
    Corridor,
    Flips,
    KnowingCorridor,
    NoisyCorridor,
    SeededCorridor,
    corridor_tasks,
    player,
    value,
)

from alignopsd_trl.commands.measure.metrics import (
    NAMES,
    Turns,
    agreement,
    measured_rows,
    reliability,
    turn_table,
    turns_of,
)
from alignopsd_trl.commands.measure.training import FidelityCallback
from alignopsd_trl.commands.measure.variants import turn_credit
from alignopsd_trl.common import statistics
from alignopsd_trl.common.files import plain
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Credit, grpo
from alignopsd_trl.rollout.monte_carlo.replays import (
    ReplayError,
    Replays,
    enough_for,
    further_rollouts,
    play_groups,
    rollout_lengths,
    take_rollouts,
    worth_measuring,
)
from alignopsd_trl.rollout.monte_carlo.tree import Tree, back_up, turn_advantages
from alignopsd_trl.training.recorder import Round
from alignopsd_trl.turns import TurnBatch


def _bench(policy: Flips, factory: type = Corridor, slots: int = 64) -> Replays:
    return Replays(player(policy, factory, slots), slots, 0)


def _measured(seed: int, rollouts: int, everywhere: bool = False):
    policy = Flips(seed)
    bench = _bench(policy)
    played = play_groups(bench, corridor_tasks(), 4)
    tree = take_rollouts(bench, played, rollouts, everywhere=everywhere)
    return played, tree, turn_advantages(tree)


def _exact(played) -> np.ndarray:
    found = []
    for one in played:
        path = [turn.action for turn in one.turns]
        values = [value(path[:place], one.row["need"]) for place in range(len(path) + 1)]
        found += [after - before for before, after in zip(values, values[1:], strict=False)]
    return np.array(found)


def _agree_with_exact_ones(several) -> None:
    """The squared error over the stated one is 1 on average; a bias would show in the mean."""
    scores, differences = [], []
    for played, found in several:
        difference, known = found.advantage - _exact(played), np.isfinite(found.advantage)
        differences.append(difference[known].mean())
        scores.append(np.mean((difference / found.error)[known] ** 2))
    assert 0.5 < np.mean(scores) < 1.5
    assert abs(np.mean(differences)) < 3 * np.std(differences) / np.sqrt(len(differences)) + 0.01


@pytest.mark.full
def test_advantages_agree_with_exact_ones_within_their_errors() -> None:
    _agree_with_exact_ones([_measured(seed, rollouts=16)[::2] for seed in range(12)])


@pytest.mark.full
def test_rollouts_end_where_the_environment_says_that_all_is_lost() -> None:
    several, played_turns = [], {KnowingCorridor: 0, Corridor: 0}
    for seed in range(8):
        for factory in played_turns:
            bench = _bench(Flips(seed), factory)
            played = play_groups(bench, corridor_tasks(), 4)
            tree = take_rollouts(bench, played, 16)
            played_turns[factory] += sum(tree.rollout_turns)
            assert all(len(one.turns) == 3 for one in played), "the episodes themselves are played to their ends"
            several += [(played, turn_advantages(tree))] if factory is KnowingCorridor else []
    _agree_with_exact_ones(several)
    assert played_turns[KnowingCorridor] < 0.97 * played_turns[Corridor], "of episodes of three turns little is left"


def test_what_a_lost_episode_is_still_rewarded_for_is_played_to_the_end() -> None:
    trees = []
    for factory in (KnowingCorridor, Corridor):
        bench = _bench(Flips(0), factory)
        trees.append(take_rollouts(bench, play_groups(bench, corridor_tasks(), 4), 16, value="reward"))
    assert trees[0].seen == trees[1].seen and trees[0].rollout_turns == trees[1].rollout_turns


def test_more_rollouts_leave_less_error_and_halves_agree() -> None:
    few, many = (_measured(3, rollouts)[2] for rollouts in (6, 60))
    assert np.nanmean(many.error) < 0.5 * np.nanmean(few.error)
    known = np.isfinite(many.advantage)
    assert np.corrcoef(many.halves[:, known])[0, 1] > 0.7
    assert np.allclose(many.halves.mean(0)[known], many.advantage[known])


def test_a_group_of_equal_rewards_is_left_out_unless_asked_for() -> None:
    played, tree, found = _measured(1, rollouts=4)
    rewards = {one.task: {other.reward for other in played if other.task == one.task} for one in played}
    alike = {task for task, values in rewards.items() if len(values) == 1}
    assert alike
    tasks = [one.task for one in played for _ in one.turns]
    assert all(np.isnan(found.advantage[row]) == (task in alike) for row, task in enumerate(tasks))
    assert np.isfinite(_measured(1, rollouts=4, everywhere=True)[2].advantage).all()


def test_siblings_share_states_and_values_are_backed_up() -> None:
    bench = _bench(Flips(5))
    played = play_groups(bench, corridor_tasks(1), 8)
    tree = Tree(played)
    assert len(tree.states) == len({tuple(t.action for t in one.turns[:k]) for one in played for k in range(3)})
    assert sum(len(state.visits) for state in tree.states) == 24
    left, right = "left", "right"
    root, child = 0, next(row for row, state in enumerate(tree.states) if state.path == (right,))
    step = next(step for step, row in tree.states[root].children.items() if row == child)
    tree.add_rollout(0, root, [step, (left, "?")], 1.0)
    tree.add_rollout(0, root, [(left, "elsewhere")], 0.0)
    for outcome in (0.0, 0.0, 1.0):
        tree.add_rollout(0, child, [(left, "?")], outcome)
    values = back_up(tree, 0, 0.25)
    assert values.value[child] == 0.5 and values.value[root] == 0.25
    assert np.isnan(back_up(tree, 1, 0.25).value[root])


def test_the_second_round_goes_where_the_error_is() -> None:
    played = play_groups(_bench(Flips(2)), corridor_tasks(2), 4)
    tree = Tree(played)
    tree.outcomes = [0.0] * 4 + [1.0] * 4
    states = worth_measuring(tree, everywhere=True)
    sure = {row for row, state in enumerate(tree.states) if state.path.count("right") >= 2}
    for row in states:
        for number in range(4):
            outcome = 1.0 if row in sure else float(number % 2)
            for half in (0, 1):
                tree.add_rollout(half, row, [("?", "?")], outcome)
    wanted = further_rollouts(tree, states, 24, 1.0)
    depth = {row: len(state.path) for row, state in enumerate(tree.states)}
    taken = {row: sum(n for _, state, n in wanted if state == row) / len(tree.states[row].visits) for row in states}
    for row in sure:
        unsure = [taken[other] for other in states if other not in sure and depth[other] == depth[row]]
        assert not unsure or taken[row] < np.mean(unsure)


@pytest.mark.full
def test_walking_ends_when_values_are_known_well_enough() -> None:
    assert [enough_for(states) for states in (10, 1111, 100_000)] == [0.95, pytest.approx(0.5, abs=0.001), 0.3]
    played_turns = {}
    for enough in (0.5, None, 1.0):
        bench = _bench(Flips(6))
        played = play_groups(bench, corridor_tasks(), 8)
        tree = take_rollouts(bench, played, 60, enough=enough)
        played_turns[enough] = sum(tree.rollout_turns)
    assert played_turns[0.5] < 0.5 * played_turns[1.0] and played_turns[0.5] <= played_turns[None] <= played_turns[1.0]
    assert played_turns[1.0] == pytest.approx(60 * sum(rollout_lengths(tree)[worth_measuring(tree)]), rel=0.1)


def test_chance_outside_the_seed_is_an_error_that_says_so() -> None:
    bench = _bench(Flips(0), NoisyCorridor)
    played = play_groups(bench, corridor_tasks(), 4)
    with pytest.raises(
        ReplayError, match="not deterministic: after [123] replayed actions of task 'corridor/.*observation"
    ):
        take_rollouts(bench, played, 4, everywhere=True)


def test_rollouts_are_the_same_when_portions_are_kept_and_read_again() -> None:
    policy, store = Flips(4), {}
    bench = _bench(policy, slots=16)
    played = play_groups(bench, corridor_tasks(), 4)

    def kept(name, play):
        if name not in store:
            store[name] = play()
        return store[name]

    first = take_rollouts(bench, played, 6, kept=kept)
    asked = len(policy.calls)
    again = take_rollouts(bench, played, 6, kept=kept)
    assert len(policy.calls) == asked and len(store) > 2
    assert [halves for halves in first.seen] == [halves for halves in again.seen]


def test_praise_and_blame_in_training_are_those_of_the_outcome(tmp_path: Path) -> None:
    """Rewards that are no 0 and 1, of episodes of 1 to 6 turns: what the command makes of them is what is logged."""
    bench = _bench(Flips(7), Climb)
    played = play_groups(bench, corridor_tasks(12), 8)
    batch = TurnBatch.of(played, 0, "cpu")
    values = torch.randn(batch.policy_mask.shape, generator=torch.Generator().manual_seed(0))
    credit = Credit(values * batch.policy_mask)
    config = AlignOPSDConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    callback = FidelityCallback(every=1, tasks=12, rollouts=4)
    replays = partial(nullcontext, _bench(Flips(11), Climb))
    logged = callback.on_round(config, Round(0, 0, played, batch, credit, replays))
    tree = take_rollouts(_bench(Flips(11), Climb), played, 4, value="reward", enough=None)
    sides = grpo.outcome(batch, config).advantage.numpy()
    episodes = sorted(played, key=lambda one: (one.task, one.rollout))
    found = turn_advantages(tree, episodes)
    table = measured_rows([turn_table(episodes, found, sides).assign(credit=turn_credit(credit, batch).numpy())])
    figures = agreement(turns_of(table), {"c": table.credit.to_numpy()}, "c")["c"]
    assert logged["fidelity/turns"] == found.known.sum() > 60
    for name in NAMES:
        assert logged[f"fidelity/{name}"] == pytest.approx(figures[name].value), name


@pytest.mark.full
def test_rollouts_take_turns_with_the_seeds_of_all_siblings_over_the_rounds() -> None:
    """Either half has its own siblings' seeds; a later round goes on where the last one stopped."""
    bench, walks = _bench(Flips(0), SeededCorridor, slots=16), []

    def kept(name, play):
        portion = play()
        walks.extend((name.split("_")[1], one) for one in portion)
        return portion

    played = play_groups(bench, corridor_tasks(3), 8)
    tree = take_rollouts(bench, played, 24, everywhere=True, kept=kept)
    for root in (row for row, state in enumerate(tree.states) if not state.path):
        for half in (0, 1):
            begun = [(number, one.steps[0][1]) for number, one in walks if (one.state, one.half) == (root, half)]
            seeds = Counter(seen.split()[-1] for _, seen in begun)
            assert len({number for number, _ in begun}) > 1 and len(begun) == tree.begun[root][half] > 4
            assert len(seeds) == 4 and max(seeds.values()) - min(seeds.values()) <= 1


# Metrics


def _turns(seed: int = 0, tasks: int = 40, noise: float = 0.5) -> tuple[Turns, np.ndarray]:
    draw = np.random.default_rng(seed)
    task = np.repeat(np.arange(tasks), 20)
    trajectory = np.repeat(np.arange(tasks * 4), 5)
    truth = draw.normal(size=len(task))
    halves = truth + noise * draw.normal(size=(2, len(task)))
    outcome = np.where(draw.random(tasks * 4) < 0.5, 1.0, -1.0)[trajectory]
    error = np.full(len(task), noise / np.sqrt(2))
    return Turns(task, trajectory, outcome, halves.mean(0), error, halves), truth


def test_correlation_is_free_of_the_noise_of_the_rollouts() -> None:
    turns, truth = _turns(noise=1.0)
    draw = np.random.default_rng(1)
    credit = {"true": truth, "half": truth + np.sqrt(3) * draw.normal(size=len(truth)), "flat": turns.outcome * 1.0}
    figures = agreement(turns, credit, "true")
    assert figures["true"]["r_within"].value == pytest.approx(1.0, abs=0.06)
    assert figures["half"]["r_within"].value == pytest.approx(0.5, abs=0.08)
    low, high = figures["half"]["r_within"].low, figures["half"]["r_within"].high
    assert low < 0.5 < high and 0.02 < high - low < 0.3
    assert np.isnan(figures["flat"]["r_within"].value) and figures["flat"]["lift"].value == pytest.approx(1.0)
    assert figures["half"]["r_within_minus_true"].value == pytest.approx(-0.5, abs=0.1)
    assert reliability(turns) == pytest.approx(1 / 1.5, abs=0.08)
    assert figures["true"]["spearman"].value < 0.95  # ranks keep their noise


def test_turns_that_only_rounding_tells_apart_are_tied_in_ranks() -> None:
    """Siblings that did the same differ in the last digit after their trajectories' means are taken off."""
    one, noise = np.array([0.1, 0.2, 0.7]), np.array([0.0, 1e-16, -1e-16])
    halves = np.tile(np.concatenate([one, one]), (2, 1))
    trajectory = np.repeat([0, 1], 3)
    turns = Turns(np.zeros(6, int), trajectory, np.ones(6), halves[0], np.full(6, 0.1), halves)
    credit = {"clean": np.tile(one, 2), "rounded": np.concatenate([one + noise, one])}
    found = agreement(turns, credit, "clean")
    assert found["clean"]["spearman"].value == found["rounded"]["spearman"].value == pytest.approx(1.0)


def test_praise_and_blame_are_told_apart() -> None:
    turns, truth = _turns(noise=0.1)
    credit = {"praise only": np.where(turns.outcome > 0, truth, -truth), "slope": 3 * truth}
    figures = agreement(turns, credit, "slope")
    assert figures["praise only"]["r_praised"].value == pytest.approx(1.0, abs=0.05)
    assert figures["praise only"]["r_blamed"].value == pytest.approx(-1.0, abs=0.05)
    difference = figures["praise only"]["r_blamed_minus_slope"]
    assert difference.value == pytest.approx(-2.0, abs=0.1) and difference.high < -1.8
    assert figures["praise only"]["r_praised_minus_slope"].value == pytest.approx(0.0, abs=1e-9)
    assert "r_blamed_minus_slope" not in figures["slope"]
    assert figures["slope"]["slope"].value == pytest.approx(3.0, abs=0.15)
    assert figures["slope"]["sign_agreement"].value > 0.98
    assert figures["slope"]["lift"].value > 1.05


def _unlike_tasks(tasks: int, draw: np.random.Generator) -> tuple[Turns, np.ndarray]:
    """Turns of tasks that differ in how credit goes with A_MC, and that credit."""
    parts = []
    for rho in np.repeat(np.clip(draw.normal(0.3, 0.25, tasks), -0.9, 0.9), 8):
        truth = draw.normal(size=draw.integers(4, 9))
        credit = rho * truth + np.sqrt(1 - rho**2) * draw.normal(size=len(truth))
        parts.append(np.stack([credit, *(truth + 0.4 * draw.normal(size=(2, len(truth))))]))
    trajectory = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
    credit, *halves = np.concatenate(parts, axis=1)
    outcome = np.where(trajectory % 8 < 3, 1.0, -1.0)
    error = np.full(len(trajectory), 0.3)
    return Turns(trajectory // 8, trajectory, outcome, np.mean(halves, 0), error, np.array(halves)), credit


@pytest.mark.full
@pytest.mark.parametrize("tasks", [5, 8, 30])
def test_intervals_cover_at_about_their_level(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Percentiles of the bootstrap as they are hold the truth in .80 to .83 (five tasks) and .84 to .86 (eight)."""
    monkeypatch.setattr(statistics, "TASK_DRAWS", 400)
    draw = np.random.default_rng(1)
    turns, credit = _unlike_tasks(1500, draw)
    names = ("r_within", "r_praised", "r_blamed", "lift")
    truth = {name: agreement(turns, {"c": credit}, "c")["c"][name].value for name in names}
    inside = []
    for _ in range(300):
        turns, credit = _unlike_tasks(tasks, draw)
        found = agreement(turns, {"c": credit}, "c")["c"]
        inside.append([found[name].low <= truth[name] <= found[name].high for name in names])
    covered = dict(zip(names, np.mean(inside, 0), strict=True))
    assert all(0.9 < share < 0.985 for share in covered.values()), covered


def test_fewer_than_three_tasks_have_no_interval() -> None:
    assert statistics.stretch(5) == pytest.approx(np.sqrt(5 / 4) * 2.7764 / 1.95996, rel=1e-4)
    assert statistics.stretch(1000) == pytest.approx(1, abs=0.003)
    for tasks, shown in ((1, False), (2, False), (3, True)):
        turns, truth = _turns(tasks=tasks)
        credit = truth + np.random.default_rng(0).normal(size=len(truth))
        figures = agreement(turns, {"one": credit, "other": truth}, "other")["one"]
        for one in figures.values():
            assert np.isfinite(one.value) and np.isfinite([one.low, one.high]).all() == shown
        assert str(figures["r_within"]).endswith("[-]") != shown
        assert plain(figures["lift"])["low"] is None or shown
        assert 0 <= figures["sign_agreement"].value <= 1 and not figures["sign_agreement"].high > 1


def test_tasks_without_a_part_in_a_figure_are_not_counted() -> None:
    """Of ten tasks two have praised trajectories: nothing says how praised turns vary over tasks."""
    turns, truth = _turns(tasks=10)
    turns = replace(turns, outcome=np.where(turns.task < 2, turns.outcome, -1.0))
    figures = agreement(turns, {"one": truth + 1.0, "other": np.abs(truth)}, "other")["one"]
    for name in ("r_praised", "r_praised_minus_other"):
        assert np.isfinite(figures[name].value) and np.isnan(figures[name].low)
    assert np.isfinite(figures["r_blamed"].low)
