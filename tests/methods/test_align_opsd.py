"""The method against a teacher made of tables: whole pipelines, its calls, its ablations, and odd batches."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fakes.tables import TableTeacher, batch_of, config, empty_world, small_world
from method_vectors import TOLERANCE, Case, cases, compare, flag, matrix, real

from alignopsd_trl.methods import checked_credit, get_method
from alignopsd_trl.methods.align_opsd.method import AlignOPSD
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
from alignopsd_trl.rollout.reading import parse_response
from alignopsd_trl.turns import Thought, TurnBatch

# Whole pipelines of the vectors, through the method's own wiring

COLUMNS = {name: name for name in ("rho", "alpha", "source_weights", "turn_share", "projected_density", "divergence")}
COLUMNS |= {"turn_weight": "weight", "turn_evidence": "evidence", "raw_density": "density", "turn_gap": "rectified_gap"}
"""What the vectors name -> the column of the records."""


def told_apart(responses: list[str], first: int) -> list[Thought]:
    """Thoughts whose texts differ from row to row, since the vectors embed rows, not texts. Outer white space does not
    matter to the action rules."""
    thoughts = [parse_response(text) for text in responses]
    return [
        Thought(
            f"{thought.thinking} {first + row}" if thought.thinking else "",
            thought.action + " " * (first + row + 1) if thought.action else "",
        )
        for row, thought in enumerate(thoughts)
    ]


def pipeline_config(params: Case) -> SimpleNamespace:
    renamed = {
        "top_k": "max_sources",
        "quantile": "boundary_quantile",
        "threshold_min": "boundary_min",
        "threshold_max": "boundary_max",
        "mixing": "credit_mixing",
        "normalization_scope": "group_statistics",
        "invalid_penalty": "invalid_action_penalty",
    }
    settings = {renamed.get(name, name): value for name, value in params.items()}
    settings["allocation"] = {"adaptive": "span"}.get(params["allocation"], params["allocation"])
    settings["action_filter"] = params["action_filter"] or "none"
    settings["valid_profiles"] = "matched"  # the vectors follow the release
    settings["scale_rewards"] = "group" if settings.pop("normalize_by_std") else "none"
    return config(**settings)


def pipeline_inputs(inputs: Case) -> tuple[TurnBatch, TableTeacher]:
    count = len(inputs["identities"])
    students, teachers = told_apart(inputs["student_response"], 0), told_apart(inputs["teacher_response"], count)
    embeddings = {}
    for side, thoughts in (("student", students), ("teacher", teachers)):
        for row, thought in enumerate(thoughts):
            if thought.thinking:
                embeddings[thought.thinking] = inputs[f"{side}_embedding"][row]
            if thought.action and f"{side}_action_embedding" in inputs:
                width = len(inputs["student_embedding"][0])
                vector = inputs[f"{side}_action_embedding"][row]
                embeddings[thought.action] = vector + [0.0] * (width - len(vector))
    cross = {(source, target): real(row) for source, target, row in inputs["cross_log_probs"]}
    identity = matrix(inputs["identity_log_probs"], real)
    views = lambda source, target: identity[target] if source == target else cross[source, target]  # noqa: E731
    batch = batch_of(
        inputs["identities"],
        students,
        matrix(inputs["policy_mask"], flag),
        real(inputs["reward"]),
        matrix(inputs["student_log_probs"], real),
        flag(inputs["action_valid"]),
    )
    return batch, TableTeacher(teachers, embeddings, views)


@pytest.mark.parametrize(("kind", "case"), cases(pipelines=True))
def test_method_gives_the_pipeline_vectors(kind: str, case: Case) -> None:
    batch, teacher = pipeline_inputs(case["inputs"])
    method = get_method("align_opsd")(pipeline_config(case["params"]))
    credit = method.assign(batch, teacher, step=0)
    expected = case["expected"]
    torch.testing.assert_close(credit.advantages, real(expected["final_token_advantage"]), atol=TOLERANCE, rtol=0)
    for name in COLUMNS.keys() & expected.keys():
        compare(credit.trace[COLUMNS[name]], expected[name], name)
    assert credit.trace["sources"] == expected["sources"]
    if "threshold" in expected and case["params"]["allocation"] == "adaptive":
        assert credit.metrics.get("spans/threshold") == pytest.approx(expected["threshold"], abs=TOLERANCE)
    assert teacher.calls[:2] == ["thoughts", "encode"] and teacher.calls.count("score") == 1


class OwnViewAlone(AlignOPSD):
    """A variant from outside the package: matches are made, and the turn's own view is all that counts."""

    name = "own_view_alone"

    def rectify(self, batch, teacher, matches):
        identity, views = super().rectify(batch, teacher, matches)
        return identity, replace(views, rectified=identity, rectified_gap=views.identity_gap)


def test_a_variant_overrides_the_stage_of_rectification() -> None:
    batch, teacher = small_world()
    paper = AlignOPSD(config()).assign(batch, teacher, 0)
    variant = OwnViewAlone(config()).assign(batch, teacher, 0)
    plain = AlignOPSD(config(rectify=False)).assign(batch, teacher, 0)
    assert torch.equal(variant.advantages, plain.advantages) and not torch.equal(variant.advantages, paper.advantages)


ABLATIONS = {
    "default": ({}, ["thoughts", "encode", "score", "gather"]),
    "no rectification": ({"rectify": False}, ["thoughts", "encode", "score", "gather"]),
    "alpha 0": ({"alpha_max": 0.0}, ["thoughts", "encode", "score", "gather"]),
    "flat turn": ({"allocation": "turn"}, ["thoughts", "encode", "score"]),
    "flat turn, no rectification": ({"allocation": "turn", "rectify": False}, ["score"]),
    "flat token": ({"allocation": "token"}, ["thoughts", "encode", "score"]),
    "random spans": ({"allocation": "random"}, ["thoughts", "encode", "score"]),
    "entropy distance": ({"profile_distance": "entropy"}, ["thoughts", "encode", "score", "gather", "gather"]),
    "no allocation": ({"allocation": "none"}, []),
    "rectification only": ({"allocation": "none", "auxiliary_loss": "alignment"}, ["thoughts", "encode", "score"]),
    "sdar": ({"allocation": "none", "auxiliary_loss": "sdar"}, ["score"]),
    "span and sdar": ({"auxiliary_loss": "sdar"}, ["thoughts", "encode", "score", "gather"]),
}


@pytest.mark.parametrize(("changes", "calls"), ABLATIONS.values(), ids=ABLATIONS)
def test_the_teacher_is_asked_what_the_ablation_needs_whatever_the_batch(changes: Case, calls: list[str]) -> None:
    method = get_method("align_opsd")(config(**changes))
    for batch, teacher in (small_world(), small_world(turns=1), empty_world()):
        credit = checked_credit(method, batch, teacher, step=0)  # asks for nothing that it does not declare
        assert teacher.calls == calls
        assert credit.advantages.shape == batch.policy_mask.shape
        assert all(math.isfinite(value) for value in credit.metrics.values())
        assert all(len(column) == len(batch) for column in credit.trace.values())
    assert method.needs_teacher == bool(calls) and method.needs_encoder == ("encode" in calls)


@pytest.mark.parametrize("changes", [{"rectify": False}, {"alpha_max": 0.0}])
def test_without_rectification_only_identity_views_are_scored(changes: Case) -> None:
    batch, teacher = small_world()
    credit = get_method("align_opsd")(config(**changes)).assign(batch, teacher, step=0)
    assert teacher.pairs == [(row, row) for row in range(len(batch))]
    assert credit.trace["identity_gap"] == credit.trace["rectified_gap"]
    assert not any("act" in text for text in teacher.encoded), "actions are encoded for the filter only"


def test_identity_and_matched_views_are_one_call_and_texts_are_encoded_once() -> None:
    batch, teacher = small_world()
    credit = get_method("align_opsd")(config()).assign(batch, teacher, step=0)
    matched = [(source, target) for target, row in enumerate(credit.trace["sources"]) for source in row]
    assert teacher.pairs == [(row, row) for row in range(len(batch))] + matched
    assert matched and all(batch.task[source] == batch.task[target] for source, target in matched)
    assert len(teacher.encoded) == len(set(teacher.encoded))


def test_profiles_below_gamma_are_evidence_unless_the_release_is_followed() -> None:
    batch, teacher = small_world(ties=False)
    for kind, counted in (("eligible", 6 * 5), ("matched", 0)):  # six rollouts of six turns
        settings = config(valid_profiles=kind, similarity_threshold=0.9999)
        credit = get_method("align_opsd")(settings).assign(batch, teacher, step=0)
        assert sum(credit.trace["divergence_counts"]) == counted


def test_the_weight_of_sources_at_other_turns_is_a_mean_over_matched_turns() -> None:
    batch, teacher = small_world(ties=False)
    credit = get_method("align_opsd")(config(action_filter="none")).assign(batch, teacher, step=0)
    trace, number = credit.trace, batch.turn.tolist()
    rows = [
        (target, *found) for target, found in enumerate(zip(trace["sources"], trace["source_weights"], strict=True))
    ]
    off = [
        sum(weight for source, weight in zip(sources, weights, strict=True) if number[source] != number[target])
        for target, sources, weights in rows
        if sources
    ]
    assert credit.metrics["correspondence/off_turn_weight"] == pytest.approx(sum(off) / len(off), abs=1e-6)
    assert 0 < sum(off) / len(off) != pytest.approx(credit.metrics["correspondence/off_turn_share"], abs=1e-3)


def test_threshold_is_over_all_processes() -> None:
    alone = get_method("align_opsd")(config()).assign(*small_world(), step=0)
    among = get_method("align_opsd")(config()).assign(*small_world(others=[0.0] * 1000), step=0)
    assert alone.metrics["spans/threshold"] == 0.1 and among.metrics["spans/threshold"] == 0.01
    assert among.metrics["spans/threshold_unclipped"] == 0.0


def test_config_without_allocation_is_grpo() -> None:
    batch, teacher = small_world()
    for changes in ({}, {"invalid_action_penalty": 0.1}, {"group_statistics": "turn", "scale_rewards": "none"}):
        batch = replace(batch, action_valid=torch.arange(len(batch)) % 4 > 0)
        plain = get_method("grpo")(config(**changes)).assign(batch, teacher, step=0)
        credit = get_method("align_opsd")(config(allocation="none", **changes)).assign(batch, teacher, step=0)
        assert torch.equal(plain.advantages, credit.advantages)
        assert bool((plain.advantages != 0).any()) and not teacher.calls


def test_turn_statistics_with_a_penalty_normalise_the_penalised_rewards() -> None:
    batch, teacher = small_world()
    batch = replace(batch, action_valid=torch.arange(len(batch)) % 5 > 0)
    settings = config(group_statistics="turn", invalid_action_penalty=0.1)
    credit = get_method("grpo")(settings).assign(batch, teacher, step=0)
    for task in range(2):
        rows = batch.task == task
        penalised = batch.reward[rows] - 0.1 * (~batch.action_valid[rows]).float()
        expected = (penalised - penalised.mean()) / (penalised.std() + 1e-6)
        torch.testing.assert_close(credit.advantages[rows, 0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["grpo", "align_opsd"])
def test_group_that_lost_its_siblings_has_no_advantage(name: str) -> None:
    names = [["a", "r0", 0], ["a", "r0", 1], ["b", "r0", 0], ["b", "r1", 0]]
    thoughts = [Thought("same", "go")] * 4
    mask = torch.ones(4, 3, dtype=torch.bool)
    batch = batch_of(names, thoughts, mask, torch.tensor([1.0, 1.0, 1.0, 0.0]), -torch.rand(4, 3), flag([0, 1, 1, 1]))
    teacher = TableTeacher(thoughts, {"same": [1.0, 0.0], "go": [0.0, 1.0]}, lambda source, target: -torch.ones(3))
    credit = get_method(name)(config(invalid_action_penalty=0.1)).assign(batch, teacher, step=0)
    assert not credit.advantages[:2].any() and credit.advantages[2:].all()
    assert credit.metrics["outcome/lone_groups"] == 1.0


def test_turn_without_optimised_tokens_has_weight_one_and_no_say() -> None:
    batch, teacher = small_world()
    batch.policy_mask[2] = False
    batch.student_log_probs[2] = -100.0  # would be overwhelming evidence
    credit = get_method("align_opsd")(config()).assign(batch, teacher, step=0)
    assert credit.trace["weight"][2] == 1.0 and not credit.advantages[2].any()
    rows, tokens = batch.rollout + 3 * batch.task == 0, batch.policy_mask.sum(1)
    weights = torch.tensor(credit.trace["weight"])
    assert float((weights * tokens)[rows].sum()) == pytest.approx(float(tokens[rows].sum()), rel=1e-5)


def test_advantages_keep_the_sign_and_the_token_budget() -> None:
    batch, teacher = small_world()
    for allocation in ("span", "turn", "random", "token"):
        credit = get_method("align_opsd")(config(allocation=allocation)).assign(batch, teacher, step=0)
        plain = get_method("grpo")(config()).assign(batch, teacher, step=0)
        assert torch.equal(credit.advantages.sign(), plain.advantages.sign())
        for task in range(2):
            for rollout in range(3):
                rows = (batch.task == task) & (batch.rollout == rollout)
                torch.testing.assert_close(
                    credit.advantages[rows].sum(), plain.advantages[rows].sum(), rtol=1e-5, atol=0
                )
        assert not torch.equal(credit.advantages, plain.advantages)


# Auxiliary losses


@pytest.mark.parametrize("kind", ["alignment", "sdar"])
def test_an_auxiliary_loss_has_a_gate_without_gradient_and_a_frozen_target(kind: str) -> None:
    """Of the rectified teacher with the gate of the snapshot's gap, or of the identity teacher with the live gap's."""
    batch, teacher = small_world()
    method = get_method("align_opsd")(config(auxiliary_loss=kind, auxiliary_coefficient=0.02, gate_beta=2.0))
    targets = method.assign(batch, teacher, step=0).targets
    target = targets["teacher"]
    assert not target.requires_grad and method.auxiliary_weight == 0.02
    identity = torch.stack([teacher._views(row, row) for row in range(len(batch))])
    assert torch.equal(target, identity) == (kind == "sdar")
    live = (batch.student_log_probs - 1.0).requires_grad_()
    loss = method.auxiliary(targets, live, batch.student_log_probs)
    loss.sum().backward()
    gate = torch.sigmoid(2.0 * (target - (live.detach() if kind == "sdar" else batch.student_log_probs)))
    torch.testing.assert_close(live.grad, -gate)
    torch.testing.assert_close(loss, gate * (target - live))


def test_no_auxiliary_loss_by_default() -> None:
    method = get_method("align_opsd")(config())
    credit = method.assign(*small_world(), step=0)
    assert method.auxiliary_weight == 0.0 and not credit.targets


# Options


def test_an_option_out_of_range_is_named_with_what_it_must_be() -> None:
    for options, message in (
        ({"alpha_max": 1.5}, r"alpha_max=1.5 must lie in \[0, 1\]"),
        ({"credit_temperature": 0.0}, "credit_temperature=0.0 must be greater than 0"),
        ({"band": -0.1}, "band=-0.1 must not be negative"),
        ({"weighting": "open"}, "weighting='open': choose one of 'capped', 'band'"),
        ({"similarity_threshold": 1.0}, "below 1"),
        ({"boundary_min": 0.2}, "boundary_min=0.2 must not exceed boundary_max=0.1"),
    ):
        with pytest.raises(ValueError, match=message):
            AlignOPSDOptions(**options)


def test_options_of_a_baseline_are_refused() -> None:
    with pytest.raises(ValueError, match="method_options=.*fields of the config itself"):
        get_method("align_opsd")(config(method_options={"alpha_max": 0.5}))
