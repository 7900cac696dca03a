"""Training in the arena: trips are what they are made of, and a gradient that is right wins more."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from research.exact_testbed.games import Trip, sample_groups
from research.exact_testbed.shopper import ExactShopper, by_weakness, make_games, make_trips
from research.exact_testbed.training import difference, train


def test_a_trip_is_won_if_all_its_games_are() -> None:
    games = make_games(3, ExactShopper(), seed=1)
    trip = Trip(games)
    assert trip.value == pytest.approx(games[0].value * games[1].value * games[2].value)
    sampled = sample_groups([trip], 400, random.Random(0))
    longest = max(len(one.turns) for one in sampled.trajectories)
    assert longest <= trip.longest and any(one.won for one in sampled.trajectories)
    turns = [turn for one in sampled.trajectories for turn in one.turns]
    first = sampled.advantages(turns)
    assert abs(first.mean()) < 0.02, "advantages of the policy's own choices are 0 in the mean"


def test_other_care_on_the_same_expansion_is_the_expansion_under_it() -> None:
    (game,) = make_games(1, ExactShopper(), seed=1)
    (fresh,) = make_games(1, ExactShopper(0.8), seed=1)
    moved = game.under(ExactShopper(0.8))
    assert moved.value == pytest.approx(fresh.value) and moved.gradient() == pytest.approx(fresh.gradient())
    assert Trip([game, game]).under(ExactShopper(0.8)).value == pytest.approx(fresh.value**2)


def test_a_skill_may_name_one_decision_alone() -> None:
    care = by_weakness(0.9, 0.4)
    shopper = ExactShopper(care, 0.95, naming=True)
    helped = [one for game in make_games(4, shopper, seed=1) for node in game.nodes for one in _decisions(node)]
    assert {round(one, 6) for one in helped} <= {0.9, 0.95} and len(set(helped)) == 2


def _decisions(node: Any) -> list[float]:
    """Care with the skill at the first decision of a view, if there is one."""
    return [node.choices[0].skilled] if len(node.choices) > 1 else []


@pytest.mark.parametrize("variant", ["exact", "grpo"])
def test_training_wins_more(variant: str, tmp_path: Path) -> None:
    care = by_weakness(0.7, 0.7)
    trips = make_trips(make_games(4, ExactShopper(care), seed=1), 3, 2, seed=0)
    won = train(trips, ExactShopper, care, (variant, {}), tmp_path, updates=4, rate=1.0, siblings=8, seed=0)
    assert len(won) == 5 and won[-1] > won[0] + 0.1


def test_differences_are_paired() -> None:
    mean, half = difference([2.0, 3.0, 4.0], [1.0, 2.5, 2.5])
    assert mean == pytest.approx(1.0) and half == pytest.approx(4.302653 * 0.5 / 3**0.5)
