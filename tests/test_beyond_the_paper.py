"""Options of AlignOPSD that the paper does not have: off, they change nothing; on, they keep what the method keeps."""

from __future__ import annotations

import math

import pytest
import torch
from test_align_opsd import config, empty_world, small_world
from test_method_properties import SEEDS, draw, rollouts
from toy import build_model, build_tokenizer

from alignopsd_trl.fidelity.policy import Scorer
from alignopsd_trl.methods import checked_credit, get_method
from alignopsd_trl.methods.align_opsd.credit import allocate, density_box, turn_weights
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
from alignopsd_trl.methods.align_opsd.rectification import rectify
from alignopsd_trl.methods.align_opsd.spread import temperature_of_spread, weight_spread
from alignopsd_trl.policy.phases import Phases
from alignopsd_trl.policy.teacher import PrivilegedTeacher
from alignopsd_trl.turns import NO_THOUGHT, Trajectory, Turn, TurnBatch


def assign(seed: int = 0, **changes):
    batch, teacher = small_world(seed)
    return batch, teacher, checked_credit(get_method("align_opsd")(config(**changes)), batch, teacher, 0)


# Matched views against the ordinary prompts of their own sources


def told(seed: int = 0, **changes):
    """Credit in a world where the words of a response are as likely as the history before them makes them, and the
    skill adds the same everywhere."""
    batch, teacher = small_world(seed)
    history, skill = teacher._views, torch.randn(batch.policy_mask.shape, generator=draw(seed))

    def ordinary(source: int, target: int) -> torch.Tensor:
        return batch.student_log_probs[target] if source == target else history(source, target)

    teacher.ordinary = ordinary
    teacher._views = lambda source, target: ordinary(source, target) + skill[target]
    return batch, teacher, checked_credit(get_method("align_opsd")(config(**changes)), batch, teacher, 0)


@pytest.mark.parametrize("aggregation", ["probability_mixture", "log_mean"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_another_history_does_to_the_words_drops_out(seed: int, aggregation: str) -> None:
    batch, teacher, credit = told(seed, source_baseline=True, aggregation=aggregation)
    assert any(alpha > 0 for alpha in credit.trace["alpha"])
    assert credit.trace["rectified_gap"] == pytest.approx(credit.trace["identity_gap"], abs=1e-5)
    paper = told(seed, aggregation=aggregation)[2].trace
    moved = [abs(one - other) for one, other in zip(paper["rectified_gap"], paper["identity_gap"], strict=True)]
    assert max(moved) > 0.05
    assert all(source != target for source, target in teacher.pairs), "asked last: ordinary prompts of matched views"


def test_the_skills_effect_at_the_sources_is_what_is_blended() -> None:
    one, other, two = torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), torch.tensor([[-2.0], [-4.0]])
    views = rectify(
        student=one,
        identity=other,
        matched=two,
        ordinary=two - torch.tensor([[0.5], [0.5]]),
        sources=torch.tensor([[1, 2]]),
        similarity=torch.tensor([[1.0, 0.9]]),
        threshold=0.8,
        temperature=0.1,
        alpha_max=0.8,
    )
    alpha = float(views.alpha)
    assert 0 < alpha < 0.8
    assert float(views.rectified_gap) == pytest.approx((1 - alpha) * -2.0 + alpha * 0.5, abs=1e-6)


def test_the_teacher_scores_under_ordinary_prompts_where_it_is_asked_to() -> None:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer).eval()
    parts = {"budget": 100, "share_prefixes": False, "agree": lambda number: number, "gather": lambda values: values}
    teacher = PrivilegedTeacher(Scorer(model, 1.0), None, tokenizer, None, phases=Phases(), **parts)
    prompts, skilled, said = [[5, 6], [7, 8, 9]], [[5, 3, 6], [7, 3, 8, 9]], [[4, 5], [6, 7]]

    def scores(privileged_prompts: list[list[int]], **how: bool) -> torch.Tensor:
        rows = zip(prompts, privileged_prompts, said, strict=True)
        turns = [Turn(n, "", *one, "", NO_THOUGHT, "", True, "") for n, one in enumerate(rows)]
        batch = TurnBatch.of([Trajectory({}, "task", str(one.number), turns=[one]) for one in turns], 0)
        return teacher.score(batch, torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), **how)

    torch.testing.assert_close(scores(skilled, privileged=False), scores(prompts))
    assert not torch.allclose(scores(skilled), scores(prompts))


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
        return turn_weights(shares.density, tokens, rollout, advantage, 0.5, box).weight

    found = weight(temperature_of_spread(spread, lambda t: weight_spread(weight(t), tokens, advantage, lambda v: v)))
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
    assert temperature_of_spread(5.0, lambda temperature: 1.0) == pytest.approx(1e-3)
    assert weight_spread(torch.ones(0), torch.ones(0), torch.ones(0), lambda values: values) == 0.0
    batch, teacher = small_world()
    teacher._views = lambda source, target: batch.student_log_probs[target]
    credit = get_method("align_opsd")(config(credit_spread=0.2, rectify=False)).assign(batch, teacher, 0)
    assert credit.trace["weight"] == pytest.approx([1.0] * len(batch), abs=1e-9)
    assert "credit/temperature" not in credit.metrics


def test_two_processes_find_the_temperature_of_the_whole_round() -> None:
    """Sums of another process join in `gather`: a quiet one raises the spread that this one must make up for."""
    weights = {temperature: torch.tensor([1 + 1 / temperature, 1 - 1 / temperature]) for temperature in (2.0, 4.0)}
    tokens, advantage, quiet = torch.ones(2), torch.ones(2), torch.tensor([0.0, 6.0])
    alone = weight_spread(weights[4.0], tokens, advantage, lambda values: values)
    among = weight_spread(weights[2.0], tokens, advantage, lambda values: torch.cat([values, quiet]))
    assert alone == pytest.approx(0.25) and among == pytest.approx(math.sqrt(0.25 * 2 / 8))


@pytest.mark.parametrize("changes", [{"source_baseline": True}, {"credit_spread": 0.1}, {"gap_bound": 0.2}])
def test_calls_do_not_depend_on_the_batch(changes: dict) -> None:
    method, calls = get_method("align_opsd")(config(**changes)), []
    for batch, teacher in (small_world(), small_world(turns=1), empty_world()):
        teacher.ordinary = teacher._views
        credit = checked_credit(method, batch, teacher, step=0)
        calls.append(teacher.calls)
        assert all(math.isfinite(value) for value in credit.metrics.values())
    assert calls[0] == calls[1] == calls[2]


# Bounded gaps


@pytest.mark.parametrize("allocation", ["span", "token"])
def test_a_bound_takes_an_outlier_for_one_word_and_one_that_nothing_exceeds_changes_nothing(allocation: str) -> None:
    batch, teacher, plain = assign(allocation=allocation)
    assert torch.equal(assign(allocation=allocation, gap_bound=50.0)[2].advantages, plain.advantages)
    views = teacher._views
    outlier = torch.zeros(batch.policy_mask.shape[1])
    outlier[0] = -40.0

    def credit(size: float, **changes):
        batch, teacher = small_world()
        teacher._views = lambda source, target: views(source, target) + size * outlier * (target == 3)
        return get_method("align_opsd")(config(allocation=allocation, **changes)).assign(batch, teacher, 0).advantages

    torch.testing.assert_close(credit(1.0, gap_bound=0.5), credit(2.0, gap_bound=0.5))
    assert not torch.allclose(credit(1.0), plain.advantages)


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_of_bounded_gaps_lies_within_the_bound(seed: int) -> None:
    credit = assign(seed, gap_bound=0.05)[2]
    evidence = torch.tensor(credit.trace["evidence"])
    assert 0 < float(evidence.abs().max()) <= 0.05 + 1e-9


# Options


def test_options_that_can_change_nothing_are_refused() -> None:
    for options, message in (
        ({"credit_spread": 0.1, "allocation": "token"}, "credit_spread=0.1 needs weights of turns"),
        ({"gap_bound": 0.5, "allocation": "none"}, "gap_bound=0.5 bounds evidence"),
        ({"source_baseline": True, "rectify": False}, "source_baseline=True with rectify=False"),
        ({"source_baseline": True, "alpha_max": 0.0}, "alpha_max=0.0 has no matched view"),
        ({"gap_bound": -1.0}, "gap_bound=-1.0 must be greater than 0, or None"),
        ({"credit_spread": 0.0}, "credit_spread=0.0 must be greater than 0, or None"),
    ):
        with pytest.raises(ValueError, match=message):
            AlignOPSDOptions(**options)
