"""Options of AlignOPSD that the paper does not have: off, they change nothing; on, they keep what the method keeps."""

from __future__ import annotations

import math

import pytest
import torch
from fakes.tables import SEEDS, config, draw, empty_world, rollouts, small_world

from alignopsd_trl.methods import checked_credit, get_method
from alignopsd_trl.methods.align_opsd.credit import allocate, density_box, temperature_of_std, turn_weights, weight_std
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions

# A temperature by the spread of the weights


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.15])
@pytest.mark.parametrize("weighting", ["capped", "band"])
@pytest.mark.parametrize("seed", SEEDS)
def test_weights_reach_the_spread_within_budget_and_box(seed: int, weighting: str, spread: float) -> None:
    rollout, span = rollouts(seed)
    tokens = torch.randint(0, 500, rollout.shape, generator=draw(seed)).double()
    evidence = torch.randn(rollout.shape, generator=draw(seed), dtype=torch.float64)
    advantage = torch.randn(7, generator=draw(seed), dtype=torch.float64)[rollout]
    advantage[rollout == 2] = 0.0  # exactly 1 at every T, so that its tokens do not count
    box = density_box(weighting, 4.0, 0.8)

    def weight(temperature: float) -> torch.Tensor:
        shares = allocate(evidence, tokens, rollout, span, temperature)
        return turn_weights(shares.density, tokens, rollout, advantage, 0.5, box)[0]

    found = weight(temperature_of_std(spread, lambda t: weight_std(weight(t), tokens, advantage, lambda v: v)))
    counted = (advantage != 0) & (tokens > 0)
    repeated = found[counted].repeat_interleave(tokens[counted].long())
    assert float(repeated.std(correction=0)) == pytest.approx(spread, rel=1e-6)
    for number in range(7):
        rows = rollout == number
        assert float((found * tokens)[rows].sum()) == pytest.approx(float(tokens[rows].sum()), rel=1e-5)
    assert found.min() >= 0.5 + 0.5 * box[0] - 1e-9 and found.max() <= 0.5 + 0.5 * box[1] + 1e-9
    assert bool((found[~counted] == 1).all())


def test_gaps_ten_times_as_large_get_a_temperature_ten_times_as_high_and_the_same_credit() -> None:
    batch, teacher = small_world()
    method = get_method("align_opsd")(config(credit_spread=0.1, rectify=False))
    once = method.assign(batch, teacher, 0)
    larger = small_world()[1]
    own, student = larger._views, batch.student_log_probs
    larger._views = lambda source, target: student[target] + 10 * (own(source, target) - student[target])
    again = method.assign(batch, larger, 0)
    assert again.metrics["credit/temperature"] == pytest.approx(10 * once.metrics["credit/temperature"], rel=1e-4)
    torch.testing.assert_close(again.advantages, once.advantages, atol=1e-4, rtol=1e-4)


def test_a_spread_out_of_reach_takes_the_coldest_temperature_and_no_evidence_changes_nothing() -> None:
    assert temperature_of_std(5.0, lambda temperature: 1.0) == pytest.approx(1e-3)
    assert weight_std(torch.ones(0), torch.ones(0), torch.ones(0), lambda values: values) == 0.0
    batch, teacher = small_world()
    teacher._views = lambda source, target: batch.student_log_probs[target]
    credit = get_method("align_opsd")(config(credit_spread=0.2, rectify=False)).assign(batch, teacher, 0)
    assert credit.trace["weight"] == pytest.approx([1.0] * len(batch), abs=1e-9)
    assert "credit/temperature" not in credit.metrics


def test_two_processes_find_the_temperature_of_the_whole_round() -> None:
    """Sums of another process join in `gather`: a quiet one raises the spread that this one must make up for."""
    weights = {temperature: torch.tensor([1 + 1 / temperature, 1 - 1 / temperature]) for temperature in (2.0, 4.0)}
    tokens, advantage, quiet = torch.ones(2), torch.ones(2), torch.tensor([0.0, 6.0])
    alone = weight_std(weights[4.0], tokens, advantage, lambda values: values)
    among = weight_std(weights[2.0], tokens, advantage, lambda values: torch.cat([values, quiet]))
    assert alone == pytest.approx(0.25) and among == pytest.approx(math.sqrt(0.25 * 2 / 8))


def test_calls_do_not_depend_on_the_batch() -> None:
    method, calls = get_method("align_opsd")(config(credit_spread=0.1)), []
    for batch, teacher in (small_world(), small_world(turns=1), empty_world()):
        credit = checked_credit(method, batch, teacher, step=0)
        calls.append(teacher.calls)
        assert all(math.isfinite(value) for value in credit.metrics.values())
    assert calls[0] == calls[1] == calls[2]


# Options


def test_options_that_can_change_nothing_are_refused() -> None:
    for options, message in (
        ({"credit_spread": 0.1, "allocation": "token"}, "credit_spread=0.1 needs weights of turns"),
        ({"credit_spread": 0.0}, "credit_spread=0.0 must be greater than 0, or None"),
    ):
        with pytest.raises(ValueError, match=message):
            AlignOPSDOptions(**options)
