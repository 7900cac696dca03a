"""The arena: exact values over our own WebShop engine, and what they say about the instrument and about credit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from alignopsd_trl.rollout.monte_carlo.rollouts import rounds, worth_measuring
from alignopsd_trl.rollout.monte_carlo.tree import Advantages, Tree, turn_advantages
from research.exact_testbed.__main__ import main
from research.exact_testbed.games import Game, Sampled, sample_groups
from research.exact_testbed.measuring import cosine, credits, total_gradient
from research.exact_testbed.shopper import DECISIONS, ExactShopper, make_games


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return make_games(4, ExactShopper(), seed=1)


def test_choices_are_a_distribution_and_values_are_their_means(games: list[Game]) -> None:
    for game in games:
        for node in game.nodes:
            assert sum(one.probability for one in node.choices) == pytest.approx(1)
            assert sum(one.skilled for one in node.choices) == pytest.approx(1)
            slopes = [sum(one.probability * one.slope[name] for one in node.choices) for name in DECISIONS]
            assert slopes == pytest.approx([0.0] * len(DECISIONS), abs=1e-12)
        sampled = sample_groups([game], 3000, random.Random(0))
        won = np.mean([one.won for one in sampled.trajectories])
        assert abs(won - game.value) < 4 * np.sqrt(game.value * (1 - game.value) / 3000) + 1e-9


def test_the_exact_gradient_is_the_slope_of_the_value(games: list[Game]) -> None:
    step = 0.01
    for name in ("search", "option"):
        moved = []
        for sign in (1, -1):
            logit = np.log(0.5 / 0.5) + sign * step
            care = dict.fromkeys(DECISIONS, 0.5) | {name: float(1 / (1 + np.exp(-logit)))}
            moved.append(sum(game.value for game in make_games(4, ExactShopper(care), seed=1)))
        assert total_gradient(games)[name] == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-3)


def test_monte_carlo_agrees_with_exact_values_within_its_errors(games: list[Game]) -> None:
    draw, scores, differences = random.Random(3), [], []
    for _ in range(6):
        sampled = sample_groups(games, 8, draw)
        tree, found = _measured(sampled, 12, 1.0, draw)
        exact = sampled.advantages([turn for one in sampled.trajectories for turn in one.turns])
        known = np.isfinite(found.advantage)
        scores.append((((found.advantage - exact) / found.error)[known] ** 2).mean())
        differences.append((found.advantage - exact)[known].mean())
        assert np.corrcoef(found.advantage[known], exact[known])[0, 1] > 0.8
    assert 0.4 < np.mean(scores) < 1.5
    assert abs(np.mean(differences)) < 3 * np.std(differences) / np.sqrt(len(differences)) + 0.01


def test_walking_no_further_than_needed_does_not_move_r(games: list[Game]) -> None:
    """The same batches and credit with all rollouts and under early stopping, held against the exact r of each batch:
    fewer turns are walked, and neither r nor the variance that is not noise goes up or down with it."""
    draw, noise, walked, r, signal = random.Random(7), np.random.default_rng(7), {}, {}, {}
    for _ in range(24):
        sampled = sample_groups(games, 8, draw)
        turns = [turn for one in sampled.trajectories for turn in one.turns]
        exact = sampled.advantages(turns)
        credit = exact + noise.normal(size=len(exact)) * 1.5 * exact.std()
        for enough in (1.0, 0.7):
            tree, found = _measured(sampled, 12, enough, draw)
            known = np.isfinite(found.advantage)
            inside = {name: _within(sampled, values)[known] for name, values in (("credit", credit), ("exact", exact))}
            halves = [_within(sampled, np.nan_to_num(half))[known] for half in found.halves]
            walked.setdefault(enough, []).append(sum(tree.rollout_turns))
            product, truth = (halves[0] * halves[1]).sum(), (inside["exact"] ** 2).sum()
            length = (inside["credit"] ** 2).sum()
            seen = (inside["credit"] * (halves[0] + halves[1]) / 2).sum() / np.sqrt(length * product)
            r.setdefault(enough, []).append(seen - (inside["credit"] * inside["exact"]).sum() / np.sqrt(length * truth))
            signal.setdefault(enough, []).append(product / truth - 1)
    assert np.sum(walked[0.7]) < 0.8 * np.sum(walked[1.0])
    for found in (r, signal):
        differences = np.array(found[0.7]) - np.array(found[1.0])
        for values in (differences, np.array(found[0.7])):
            assert abs(values.mean()) < 3 * values.std() / np.sqrt(len(values))


def _within(sampled: Sampled, values: np.ndarray) -> np.ndarray:
    """Values of all turns less their trajectory's mean."""
    lengths = [len(one.turns) for one in sampled.trajectories]
    return np.concatenate([part - part.mean() for part in np.split(values, np.cumsum(lengths)[:-1])])


def _measured(sampled: Sampled, rollouts: int, enough: float, draw: random.Random) -> tuple[Tree, Advantages]:
    tree = Tree(sampled.trajectories)
    for wanted in rounds(tree, worth_measuring(tree), rollouts, enough):
        for half, state, times in wanted:
            for _ in range(times):
                _roll_out(sampled, tree, half, state, draw)
    return tree, turn_advantages(tree)


def _roll_out(sampled: Sampled, tree: Tree, half: int, state: int, draw: random.Random) -> None:
    """One walk of the scripted policy from a state of the tree to the end."""
    place, number = tree.states[state].visits[0]
    game, node, _ = sampled.place[id(sampled.trajectories[place].turns[number])]
    steps, following = [], node
    while following is not None:
        here = game.nodes[following]
        choice = draw.choices(range(len(here.choices)), [one.probability for one in here.choices])[0]
        following, value, observation = here.after[choice]
        steps.append((here.choices[choice].action, observation))
    tree.add_rollout(half, state, steps, value)


def test_expected_gradients_point_uphill(games: list[Game], tmp_path: Path) -> None:
    exact, draw, found = total_gradient(games), random.Random(5), {"grpo": [], "oracle": []}
    for _ in range(25):
        sampled = sample_groups(games, 8, draw)
        batch, credit = credits(sampled, tmp_path, draw)
        for name, values in (("grpo", credit["grpo"]), ("oracle", sampled.advantages(batch.turns))):
            found[name].append(cosine(sampled.gradient(batch.turns, values), exact))
    for values in found.values():
        assert np.mean(values) > 3 * np.std(values) / np.sqrt(len(values)) > 0
    assert np.mean(found["oracle"]) > np.mean(found["grpo"])


def test_rectification_needs_thinking_that_states_its_situation(tmp_path: Path) -> None:
    result = main(["--tasks", "6", "--batches", "3", "--seed", "2", "--output", str(tmp_path)])
    rows = {thinking: result[thinking]["variants"] for thinking in ("template", "situation")}
    assert json.loads((tmp_path / "arena.json").read_text())["template"]["states"] == result["template"]["states"]
    without, template, stated = "align_opsd, no rectification", *rows.values()
    assert template["align_opsd"]["r_within"].value < template[without]["r_within"].value - 0.1
    assert stated["align_opsd"]["r_within"].value > template["align_opsd"]["r_within"].value
    assert template[without]["r_within"].low > 0.1
    for table in rows.values():
        assert table["exact"]["gradient"] > table["grpo"]["gradient"]
