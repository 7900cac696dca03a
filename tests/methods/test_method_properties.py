"""What the method core keeps whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes.tables import SEEDS, TableTeacher, batch_of, config, draw, rollouts, small_world

from alignopsd_trl.methods import get_method
from alignopsd_trl.methods.align_opsd.correspondence import (
    accept_actions,
    eligibility,
    select_sources,
)
from alignopsd_trl.methods.align_opsd.credit import (
    allocate,
    check_budget,
    project_to_box,
    token_weights,
    turn_evidence,
    turn_weights,
)
from alignopsd_trl.methods.align_opsd.rectification import rectify
from alignopsd_trl.methods.align_opsd.spans import (
    adjacent_divergence,
    boundary_quantile,
    profiles,
    random_segment,
    segment,
)
from alignopsd_trl.methods.grpo import invalid_action_residual, rollout_advantage, token_advantages
from alignopsd_trl.turns import Groups, Thought

# Budget


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("box", [(0.0, 4.0), (0.0, 1.2), (0.0, 1.0), (0.5, 1.5), (1.0, 1.0)])
def test_token_budget_is_conserved(seed: int, box: tuple[float, float]) -> None:
    rollout, span = rollouts(seed)
    tokens = torch.randint(0, 500, rollout.shape, generator=draw(seed)).double()
    evidence = 3 * torch.randn(rollout.shape, generator=draw(seed), dtype=torch.float64)
    advantage = torch.randn(7, generator=draw(seed), dtype=torch.float64)[rollout]
    shared = allocate(evidence, tokens, rollout, span, temperature=0.2)
    weight = turn_weights(shared.density, tokens, rollout, advantage, 0.5, box)[0]
    for number in range(7):
        rows = rollout == number
        assert float((weight * tokens)[rows].sum()) == pytest.approx(float(tokens[rows].sum()), rel=1e-5)
    assert weight.min() >= 0.5 + 0.5 * box[0] - 1e-9 and weight.max() <= 0.5 + 0.5 * box[1] + 1e-9
    assert bool((weight[tokens == 0] == 1).all())


def test_shares_are_the_closed_form_by_hand() -> None:
    """Two spans, (turn 0, turn 1) and (turn 2), tokens 1, 3, 4, T = 1."""
    tokens, evidence = torch.tensor([1.0, 3.0, 4.0]).double(), torch.tensor([0.0, 2.0, 0.0]).double()
    shared = allocate(evidence, tokens, torch.zeros(3).long(), torch.tensor([0, 0, 1]), temperature=1.0)
    e1, e2 = float(torch.tensor(1.0).exp()), float(torch.tensor(2.0).exp())
    assert shared.budget.tolist() == pytest.approx([4 * e1 / (4 * e1 + 4), 4 / (4 * e1 + 4)], rel=1e-6)
    assert shared.share.tolist() == pytest.approx([1 / (1 + 3 * e2), 3 * e2 / (1 + 3 * e2), 1.0], rel=1e-6)
    assert float((shared.density * tokens).sum()) == pytest.approx(8.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("box", [(0.0, 2.0), (0.3, 1.4), (0.9, 50.0), (0.5, 1.5)])
def test_projection_is_the_nearest_point_of_the_box(seed: int, box: tuple[float, float]) -> None:
    """Many segments at once against bisection on the shift of each: kinks in both directions are met often."""
    count, size = 400, 6
    segment_of = torch.arange(count).repeat_interleave(size)
    mass = torch.randint(1, 6, (count, size), generator=draw(seed)).double()
    density = torch.randn(count, size, generator=draw(seed), dtype=torch.float64).mul(2).exp()
    density = density * mass.sum(1, keepdim=True) / (density * mass).sum(1, keepdim=True)
    found = project_to_box(density.flatten(), mass.flatten(), segment_of, *box).view(count, size)
    low, high = density.amin(1, keepdim=True) - box[1], density.amax(1, keepdim=True) - box[0]
    for _ in range(100):
        middle = (low + high) / 2
        over = (mass * ((density - middle).clamp(*box) - 1)).sum(1, keepdim=True) > 0
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    torch.testing.assert_close(found, (density - low).clamp(*box), atol=1e-9, rtol=0)


def test_projection_leaves_densities_inside_the_box_untouched() -> None:
    density, mass = torch.tensor([0.3, 1.1, 1.6]).double(), torch.tensor([1.0, 1.0, 1.0]).double()
    segment_of = torch.zeros(3).long()
    assert torch.equal(project_to_box(density, mass, segment_of, 0.0, 4.0), density)


def test_weights_that_miss_the_budget_are_refused() -> None:
    rollout, mass = torch.zeros(2).long(), torch.tensor([3.0, 5.0]).double()
    check_budget(torch.ones(2).double(), mass, rollout)
    for weight in ([1.0, 1.1], [1.0, float("nan")]):
        with pytest.raises(RuntimeError, match="token budget"):
            check_budget(torch.tensor(weight).double(), mass, rollout)


# Zero advantage


def test_equal_rewards_are_exactly_no_advantage() -> None:
    task, rollout = torch.zeros(6).long(), torch.arange(6) // 2
    for value in (0.1, 1 / 3, 10.0, -0.7):
        reward = torch.full((6,), value)
        for statistics in ("trajectory", "turn"):
            assert not rollout_advantage(reward, Groups.of(task, rollout), statistics).any()
    middle = rollout_advantage(torch.tensor([0.0, 0.0, 1 / 3, 1 / 3, 2 / 3, 2 / 3]), Groups.of(task, rollout))
    assert middle.tolist() == pytest.approx([-1, -1, 0, 0, 1, 1], abs=1e-4) and not middle[2:4].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_are_exactly_one_without_advantage(seed: int) -> None:
    rollout, span = rollouts(seed)
    mask = torch.rand(len(rollout), 13, generator=draw(seed)) < 0.7
    gap, none = torch.randn(mask.shape, generator=draw(seed)), torch.zeros(len(rollout)).double()
    found = turn_evidence(gap, mask, none)
    shared = allocate(found.evidence, found.tokens, rollout, span, 0.1)
    assert bool((turn_weights(shared.density, found.tokens, rollout, none, 1.0, (0.0, 1.5))[0] == 1.0).all())
    assert bool((token_weights(gap, mask, none, rollout, 0.1, (0.0, 4.0)) == 1.0).all())
    assert not token_advantages(none, mask).any()


def test_penalty_is_relative_within_the_task() -> None:
    task, valid = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([True, False, True, True, True])
    residual = invalid_action_residual(torch.ones(5), valid, task, 0.1)
    assert residual[1] < 0 < residual[0] and residual[0] == residual[2] and not residual[3:].any()


# Order


@pytest.mark.parametrize("allocation", ["span", "turn", "token"])
@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_rows_does_not_matter(seed: int, allocation: str) -> None:
    batch, teacher = small_world(seed)
    plain = get_method("align_opsd")(config(allocation=allocation)).assign(batch, teacher, step=0)
    order = torch.randperm(len(batch), generator=draw(seed))
    shuffled, answers = reordered(batch, teacher, order)
    credit = get_method("align_opsd")(config(allocation=allocation)).assign(shuffled, answers, step=0)
    torch.testing.assert_close(credit.advantages, plain.advantages[order], atol=1e-6, rtol=0)
    back = order.argsort()
    assert credit.trace["weight"] == pytest.approx([plain.trace["weight"][row] for row in order.tolist()], abs=1e-9)
    expected = [[int(back[source]) for source in plain.trace["sources"][row]] for row in order.tolist()]
    assert credit.trace["sources"] == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_names_of_tasks_and_siblings_do_not_matter(seed: int) -> None:
    """Renumbering reverses the order of tasks and of siblings; only exact ties could tell."""
    batch, teacher = small_world(seed, ties=False)
    plain = get_method("align_opsd")(config()).assign(batch, teacher, step=0)
    batch = replace(batch, task=9 - batch.task, rollout=9 - batch.rollout)
    credit = get_method("align_opsd")(config()).assign(batch, teacher, step=0)
    torch.testing.assert_close(credit.advantages, plain.advantages, atol=1e-6, rtol=0)
    assert credit.trace["sources"] == plain.trace["sources"]
    assert credit.trace["cut"] == plain.trace["cut"]


def reordered(batch, teacher: TableTeacher, order: torch.Tensor):
    rows = order.tolist()
    shuffled = batch_of(
        [["", "", 0]] * len(rows),
        [batch.turns[row].thought for row in rows],
        batch.policy_mask[order],
        batch.reward[order],
        batch.student_log_probs[order],
    )
    shuffled = replace(shuffled, task=batch.task[order], rollout=batch.rollout[order], turn=batch.turn[order])
    thoughts = [teacher._thoughts[row] for row in rows]
    views = teacher._views
    return shuffled, TableTeacher(
        thoughts, teacher._embeddings, lambda source, target: views(rows[source], rows[target])
    )


def test_tasks_do_not_meet() -> None:
    """The credit of a task is the same alone and beside another one, but for the batch's threshold."""
    batch, teacher = small_world(3)
    both = get_method("align_opsd")(config(allocation="turn")).assign(batch, teacher, step=0)
    rows = (batch.task == 1).nonzero().squeeze(-1)
    alone, answers = reordered(batch, teacher, rows)
    credit = get_method("align_opsd")(config(allocation="turn")).assign(alone, answers, step=0)
    torch.testing.assert_close(credit.advantages, both.advantages[rows], atol=1e-6, rtol=0)


def test_groups_are_in_canonical_order_and_ties_go_to_the_smaller_identity() -> None:
    task, rollout = torch.tensor([1, 0, 0, 1, 0, 0]), torch.tensor([5, 2, 1, 4, 1, 0])
    turn = torch.tensor([0, 0, 1, 0, 0, 0])
    groups = Groups.of(task, rollout, turn).by_task
    assert [group.tolist() for group in groups] == [[5, 4, 2, 1], [3, 0]]
    siblings = rollout[groups[0]]
    eligible = eligibility(siblings, torch.ones(4).bool(), torch.ones(4).bool())
    chosen = select_sources(torch.full((4, 4), 0.875), eligible, siblings, threshold=0.875, top_k=3)
    assert chosen.tolist() == [[1, 3, -1], [0, 3, -1], [0, 3, -1], [0, 1, -1]]


# Rectification


@pytest.mark.parametrize("aggregation", ["probability_mixture", "log_mean"])
def test_unmatched_target_keeps_its_identity_gap_bit_for_bit(aggregation: str) -> None:
    student, identity = -torch.rand(4, 6, generator=draw(0)), -5 * torch.rand(4, 6, generator=draw(1))
    sources = torch.tensor([[-1, -1], [2, -1], [-1, 0], [1, 0]])
    similarity = torch.tensor([[0.0, 0.0], [0.9, 0.0], [0.0, 0.8], [1.0, 0.85]])  # row 2 is matched with confidence 0
    views = rectify(
        student, identity, -torch.rand(4, 6, generator=draw(2)), sources, similarity,
        threshold=0.8, temperature=0.1, alpha_max=0.8, aggregation=aggregation,
    )  # fmt: skip
    assert torch.equal(views.rectified_gap[[0, 2]], views.identity_gap[[0, 2]])
    assert torch.equal(views.rectified[0], identity[0]) and torch.equal(views.aligned[0], identity[0])
    assert views.alpha[0] == views.rho[0] == 0 and not views.weights[0].any()
    assert bool((views.rectified_gap[[1, 3]] != views.identity_gap[[1, 3]]).all())


def test_mixture_is_in_probability_space_and_the_blend_in_log_space() -> None:
    matched = torch.tensor([[0.2], [0.6]]).log()
    views = rectify(
        torch.zeros(1, 1), torch.tensor([[0.5]]).log(), matched, torch.tensor([[0, 1]]), torch.ones(1, 2),
        threshold=0.5, temperature=0.1, alpha_max=0.25,
    )  # fmt: skip
    assert float(views.aligned.exp()) == pytest.approx(0.4)
    assert float(views.rectified.exp()) == pytest.approx(0.5**0.75 * 0.4**0.25)
    impossible = rectify(
        torch.zeros(1, 1), torch.zeros(1, 1), torch.full((2, 1), -torch.inf), torch.tensor([[0, 1]]), torch.ones(1, 2),
        threshold=0.5, temperature=0.1, alpha_max=0.25,
    )  # fmt: skip
    assert float(impossible.aligned) == -torch.inf and not impossible.aligned.isnan().any()


# Gradients


@pytest.mark.parametrize("auxiliary", ["none", "alignment", "sdar"])
def test_no_gradient_leaves_the_method(auxiliary: str) -> None:
    batch, teacher = small_world()
    batch.student_log_probs.requires_grad_()
    credit = get_method("align_opsd")(config(auxiliary_loss=auxiliary)).assign(batch, teacher, step=0)
    assert not credit.advantages.requires_grad and not any(one.requires_grad for one in credit.targets.values())


# Spans


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (2, 3), (2, 8), (3, 5)])
def test_spans_partition_the_rollout_within_their_limits(seed: int, shortest: int, longest: int) -> None:
    count = seed + 1
    shift = torch.rand(count, generator=draw(seed)).tolist()
    counts = (torch.rand(count, generator=draw(seed)) < 0.7).tolist()
    for cuts in (
        segment(shift, counts, 0.5, shortest, longest, 0.1),
        random_segment(shift, counts, seed, shortest, longest, 0.1),
    ):
        assert [turn for start, end in cuts.spans for turn in range(start, end)] == list(range(count))
        assert all(end - start <= longest for start, end in cuts.spans)
        assert count < shortest or all(end - start >= shortest for start, end in cuts.spans)
        found = cuts.threshold + cuts.drawn + cuts.guided + cuts.forced
        assert sorted(found) == [start for start, _ in cuts.spans[1:]]


def test_cuts_by_hand() -> None:
    shift, counts = [0.0, 0.9, 0.5, 0.9, 0.2, 0.6], [False, True, True, True, True, True]
    assert segment(shift, counts, 0.5, 2, 8, 0.01).threshold == [3]  # 1 and 5 are too near the ends, 0.5 not above
    assert segment([0.0, 0.5, 0.7, 0.7, 0.5], [True] * 5, 0.1, 2, 8, 0.01).threshold == [2]  # tie to the earlier
    flat = segment([0.0] * 9, [True] * 9, 0.1, 2, 8, 0.01)
    assert flat.forced == [4] and flat.spans == [(0, 4), (4, 9)]


def test_quantile_at_an_order_statistic_is_that_value() -> None:
    """0.29 * 100 is 28.999...96 in binary: the turn that sets the threshold must not exceed it."""
    values = torch.rand(101, generator=draw(0), dtype=torch.float64)
    assert boundary_quantile(values, 0.29) == float(values.sort().values[29])
    assert boundary_quantile(torch.tensor([1.0, 2.0]), 0.25) == 1.25
    assert boundary_quantile(torch.zeros(0), 0.8) is None


def test_change_of_eligibility_is_no_boundary() -> None:
    eligible = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]]).bool()
    profile, valid = profiles(torch.ones(3, 3), eligible, 0.8, 0.1)
    shift, counts = adjacent_divergence(profile, valid, eligible, torch.zeros(3).long())
    assert valid.tolist() == [True, True, True] and not counts.any() and not shift.any()


def test_a_profile_counts_with_any_eligible_source_or_only_with_one_above_the_threshold() -> None:
    """Of three turns of a rollout only the first has a source at 0.8; all have sources, the second's at H .5 and .3."""
    similarity = torch.tensor([[0.8, 0.5, 0.1], [0.2, 0.3, 0.1]])
    every = torch.ones(2, 3, dtype=torch.bool)
    profile, valid = profiles(similarity, every, None, 0.1)
    same, matched = profiles(similarity, every, 0.8, 0.1)
    assert valid.tolist() == [True] * 3 and matched.tolist() == [True, False, False] and torch.equal(profile, same)
    odds = torch.tensor([6.0, 2.0, 0.0], dtype=torch.float64)  # differences of H over the temperature
    torch.testing.assert_close(profile[:, 0], odds.sigmoid(), atol=1e-6, rtol=0)
    counted = [adjacent_divergence(profile, one, every, torch.zeros(3).long())[1] for one in (valid, matched)]
    assert [one.tolist() for one in counted] == [[False, True, True], [False, False, False]]
    assert profiles(similarity, every & False, None, 0.1)[1].tolist() == [False] * 3


# Actions


@pytest.mark.parametrize(
    ("theirs", "ours", "cosine_rule", "webshop_rule"),
    [
        ("click[Red]", "click[ Red ]", True, True),
        ("click[Red]", "click[red]", True, False),
        ("search[a]b]", "search[c]", True, True),
        ("search[red]", "click[red]", True, False),
        ("CLICK[red]", "CLICK[red]", True, False),
        ("click[ ]", "click[ ]", True, False),
        ("buy", "buy", True, False),
        ("", "", False, False),
        ("  ", "go", False, False),
    ],
)
def test_action_rules(theirs: str, ours: str, cosine_rule: bool, webshop_rule: bool) -> None:
    first = torch.tensor([0])
    for rule, expected in (("cosine", cosine_rule), ("webshop", webshop_rule)):
        for similarity, kept in ((0.75, expected), (0.5, False), (float("nan"), False), (float("inf"), False)):
            found = accept_actions([theirs], [ours], torch.tensor([similarity]), 0.75, rule, first, first)
            assert found.tolist() == [kept]


def test_rejected_source_is_not_replaced() -> None:
    batch, teacher = small_world()
    open_filter = get_method("align_opsd")(config(action_filter="none")).assign(batch, teacher, step=0)
    teacher._thoughts = [
        Thought(t.thinking, "wait" if row >= 24 else t.action) for row, t in enumerate(teacher._thoughts)
    ]
    teacher._embeddings["wait"] = [-value for value in teacher._embeddings["act 0"]]
    closed = get_method("align_opsd")(config()).assign(batch, teacher, step=0)
    for before, after in zip(open_filter.trace["sources"], closed.trace["sources"], strict=True):
        assert [source for source in before if source in after] == after
    assert 0 < closed.metrics["correspondence/action_rejected_share"] < 1
