"""The arena: exact values over our own WebShop engine, and what they say about the instrument and about credit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from alignopsd_trl.fidelity.arena import Game, sample_groups
from alignopsd_trl.fidelity.plan import first_walks, further_walks, walk_lengths, worth_walking
from alignopsd_trl.fidelity.tree import Tree, advantages
from tools.arena.__main__ import main
from tools.arena.measuring import cosine, credits, total_gradient
from tools.arena.shopper import DECISIONS, ArenaShopper, make_games


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return make_games(4, ArenaShopper(), seed=1)


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
            moved.append(sum(game.value for game in make_games(4, ArenaShopper(care), seed=1)))
        assert total_gradient(games)[name] == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-3)


def test_monte_carlo_agrees_with_exact_values_within_its_errors(games: list[Game]) -> None:
    draw, scores, differences = random.Random(3), [], []
    for _ in range(6):
        sampled = sample_groups(games, 8, draw)
        tree = Tree(sampled.trajectories)
        states = worth_walking(tree, sampled.trajectories)
        wanted = first_walks(states, 12)
        for number in range(2):
            for half, state, times in wanted:
                for _ in range(times):
                    _walk(sampled, tree, half, state, draw)
            if number == 0:
                wanted = further_walks(tree, states, walk_lengths(tree, sampled.trajectories), 12, 1.0)
        turns = [(row, turn.number) for row, one in enumerate(sampled.trajectories) for turn in one.turns]
        found = advantages(tree, turns, [float(one.won) for one in sampled.trajectories], 1.0)
        exact = sampled.advantages([turn for one in sampled.trajectories for turn in one.turns])
        known = np.isfinite(found.advantage)
        scores.append((((found.advantage - exact) / found.error)[known] ** 2).mean())
        differences.append((found.advantage - exact)[known].mean())
        assert np.corrcoef(found.advantage[known], exact[known])[0, 1] > 0.8
    assert 0.4 < np.mean(scores) < 1.5
    assert abs(np.mean(differences)) < 3 * np.std(differences) / np.sqrt(len(differences)) + 0.01


def _walk(sampled, tree: Tree, half: int, state: int, draw: random.Random) -> None:
    """One walk of the scripted policy from a state of the tree to the end."""
    place, number = tree.states[state].visits[0]
    game, node, _ = sampled.place[id(sampled.trajectories[place].turns[number])]
    steps, following = [], node
    while following is not None:
        here = game.nodes[following]
        choice = draw.choices(range(len(here.choices)), [one.probability for one in here.choices])[0]
        following, value, observation = here.after[choice]
        steps.append((here.choices[choice].action, observation))
    tree.add_walk(half, state, steps, value)


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
        repaired = table["align_opsd, source baseline"]["r_within"].value
        assert repaired > table["align_opsd"]["r_within"].value + 0.05, "what another history does is most of the harm"
