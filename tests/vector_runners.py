"""How each kind of golden vector is computed, but whole pipelines: `test_align_opsd.py` asks the method for those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fakes.tables import config
from method_vectors import Case, flag, identity_columns, matrix, padded, ragged, real

from alignopsd_trl.methods.align_opsd.correspondence import (
    accept_actions,
    cosine,
    eligibility,
    select_sources,
)
from alignopsd_trl.methods.align_opsd.credit import (
    allocate,
    density_box,
    project_to_box,
    span_means,
    token_weights,
    turn_evidence,
    turn_weights,
)
from alignopsd_trl.methods.align_opsd.method import AlignOPSD
from alignopsd_trl.methods.align_opsd.rectification import Mixture, rectify
from alignopsd_trl.methods.align_opsd.spans import (
    adjacent_divergence,
    boundary_quantile,
    clip_threshold,
    divergence,
    profiles,
    random_segment,
    segment,
)
from alignopsd_trl.methods.grpo import invalid_action_residual, rollout_advantage, token_advantages
from alignopsd_trl.methods.objectives import gate, weighted_gap
from alignopsd_trl.rollout.reading import parse_response
from alignopsd_trl.scoring.packing import Packed, Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, largest_logits
from alignopsd_trl.turns import Groups, Thought, Trajectory, Turn, TurnBatch

RUNNERS: dict[str, Callable[[Case, Case], Case]] = {}


def runner(function: Callable[[Case, Case], Case]) -> Callable[[Case, Case], Case]:
    RUNNERS[function.__name__.rstrip("_")] = function  # ty: ignore[missing-attribute]
    return function


@runner
def parse(inputs: Case, params: Case) -> Case:
    thought = parse_response(inputs["text"])
    return {name: getattr(thought, name) for name in ("thinking", "action", "thinking_valid", "action_valid")}


@runner
def canonicalize_(inputs: Case, params: Case) -> Case:
    """The canonical order is that of `TurnBatch`. Copies of a turn, which fill up a batch elsewhere, are the test's."""
    rows = [(str(task), str(rollout), int(number)) for task, rollout, number in inputs["rows"]]
    played: dict[tuple[str, str], Trajectory] = {}
    for task, rollout, number in sorted(set(rows), key=lambda row: (row[2], row), reverse=True):
        trajectory = played.setdefault((task, rollout), Trajectory({}, task, rollout))
        turn = Turn(number, "", [], [], [], "", Thought("", ""), "", True, "", info={"of": (task, rollout)})
        trajectory.turns.insert(0, turn)  # turns are played in order
    batch = TurnBatch.of(list(played.values()), pad_id=0)
    identities = [(*turn.info["of"], turn.number) for turn in batch.turns]
    place = [identities.index(row) for row in rows]
    return {
        "identities": identities,
        "row_to_canonical": place,
        "canonical_to_rows": [[row for row, at in enumerate(place) if at == turn] for turn in range(len(identities))],
        "row_weight": [1 / place.count(at) for at in place],
    }


def by_task(task: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Fills an M x M matrix, 0 across tasks, with what ``make`` gives for the rows of each task."""
    whole = torch.zeros(0)
    for rows in Groups.of(task, torch.zeros_like(task)).by_task:
        part = make(rows)
        whole = whole if len(whole) else part.new_zeros(len(task), len(task))
        whole[rows[:, None], rows] = part
    return whole


@runner
def cosine_(inputs: Case, params: Case) -> Case:
    teacher, student = real(inputs["teacher"]), real(inputs["student"])
    task, _, _ = identity_columns([[name, "", 0] for name in inputs["task"]])
    within = by_task(task, lambda rows: cosine(teacher[rows], student[rows]))
    return {"H": within, "dense": cosine(teacher, student)}


@runner
def structural_mask(inputs: Case, params: Case) -> Case:
    task, rollout, _ = identity_columns(inputs["identities"])
    teacher, student = flag(inputs["teacher_thinking_valid"]), flag(inputs["student_thinking_valid"])
    if inputs["protocol"] is not None:  # the data source of a task is part of its identity here
        names = [
            f"{name} {label}" for (name, _, _), label in zip(inputs["identities"], inputs["protocol"], strict=True)
        ]
        task, _, _ = identity_columns([[name, "", 0] for name in names])
    mask = by_task(task, lambda rows: eligibility(rollout[rows], teacher[rows], student[rows]))
    return {"structural_mask": mask.int()}


def selected(
    similarity: torch.Tensor, mask: torch.Tensor, identity: tuple[torch.Tensor, ...], params: Case
) -> torch.Tensor:
    chosen = torch.full((len(similarity), params["top_k"]), -1, device=similarity.device)
    for rows in Groups.of(*identity).by_task:
        block = rows[:, None], rows
        local = select_sources(
            similarity[block], mask[block], identity[1][rows], params["similarity_threshold"], params["top_k"]
        )
        chosen[rows] = torch.where(local >= 0, rows[local], -1)
    return chosen


@runner
def select_sources_(inputs: Case, params: Case) -> Case:
    identity = identity_columns(inputs["identities"])
    return {"sources": ragged(selected(real(inputs["H"]), flag(inputs["structural_mask"]), identity, params))}


@runner
def action_filter(inputs: Case, params: Case) -> Case:
    candidates, similarity = flag(inputs["candidates"]), real(inputs["action_similarity"])
    source, target = candidates.nonzero(as_tuple=True)

    def actions(side: str) -> list[str]:
        flags = inputs[f"{side}_action_valid"]
        return [text if valid else "" for text, valid in zip(inputs[f"{side}_action"], flags, strict=True)]

    kept = accept_actions(
        actions("teacher"),
        actions("student"),
        similarity[source, target],
        params["action_threshold"],
        params["rule"],
        source,
        target,
    )
    accepted = torch.zeros_like(candidates).index_put_((source, target), kept)
    return {"accepted": accepted.int()}


def matched_views(sources: torch.Tensor, cross: list[Any], width: int) -> torch.Tensor:
    views = {(source, target): row for source, target, row in cross}
    rows = [views[source, target] for target, row in enumerate(ragged(sources)) for source in row]
    return real(rows) if rows else torch.zeros(0, width)


def rectified(inputs: Case, params: Case, similarity: torch.Tensor, sources: torch.Tensor) -> Case:
    student, identity = matrix(inputs["student_log_probs"], real), matrix(inputs["identity_log_probs"], real)
    result = rectify(
        student,
        identity,
        matched_views(sources, inputs["cross_log_probs"], student.shape[1]),
        sources,
        similarity.gather(0, sources.clamp_min(0).T).T,
        threshold=params["similarity_threshold"],
        temperature=params["aggregation_temperature"],
        alpha_max=params["alpha_max"],
        aggregation=params["aggregation"],
    )
    return {
        "source_weights": ragged(sources, result.weights),
        "rho": result.rho,
        "alpha": result.alpha,
        "aligned_log_probs": result.aligned,
        "rectified_log_probs": result.rectified,
        "identity_gap": result.identity_gap,
        "rectified_gap": result.rectified_gap,
    }


@runner
def rectify_(inputs: Case, params: Case) -> Case:
    return rectified(inputs, params, real(inputs["H"]), padded(inputs["sources"]))


class LogitsTable:
    """A `ModelScorer` whose states are logits: ``[response][prompt]``, ``(T, V)`` of each view of each response."""

    device = torch.device("cpu")

    def __init__(self, logits: torch.Tensor):
        self._logits = logits

    def states(self, rows: Packed, before: Any = None) -> torch.Tensor:
        return self._logits[rows.labels[:, 0], rows.ids[:, 0]]

    def largest(self, states: torch.Tensor, count: int, mix: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        positions = states.transpose(1, 2)  # (n, T, views, V)
        row = torch.arange(len(positions)).repeat_interleave(positions.size(1))
        one = positions[:, :, 0] if mix is None else mix(row, positions.flatten(0, 1)).unflatten(0, positions.shape[:2])
        values, ids = one.topk(count)
        return ids, values


def distribution_weights(inputs: Case, params: Case, mask: torch.Tensor) -> torch.Tensor:
    weight = torch.tensor(inputs["credit_weight"]).double()
    if params["weighting"] == "span":
        weight = span_means(weight, mask.sum(1).double(), torch.tensor(inputs["span"]))
    return weight.float()[:, None].expand(-1, mask.size(1))


@runner
def distribution(inputs: Case, params: Case) -> Case:
    """Auxiliary loss of the rectified teacher's likeliest tokens, with its gradient."""
    table, mask = real(inputs["view_logits"]), flag(inputs["mask"])
    sources, blank = torch.tensor(inputs["sources"]), torch.zeros(mask.shape)
    matched = torch.zeros(int((sources >= 0).sum()), mask.size(1))
    views = rectify(
        *(blank, blank, matched, sources, real(inputs["similarity"])),
        **{name: params[name] for name in ("threshold", "temperature", "alpha_max", "aggregation")},
    )
    mixture = Mixture.of(sources, views, params["aggregation"], params["distribution_temperature"])
    rows = list(range(len(mask)))
    prompts, responses = Ragged.of([[row] for row in rows]), Ragged.of([[row] * mask.size(1) for row in rows])
    ids, logits = largest_logits(
        LogitsTable(table), prompts, responses, params["size"], Forwards(pad_id=0, budget=12),
        sources=mixture.sources, mix=mixture,
    )  # fmt: skip
    options = {f"distribution_{name}": params[name] for name in ("beta", "weighting")}
    options |= {"distribution_temperature": params["distribution_temperature"], "auxiliary_loss": "distribution"}
    live = real(inputs["student_logits"]).requires_grad_()
    targets = {"vocabulary": live.gather(-1, ids), "teacher": logits}
    if params["weighting"] != "flat":
        targets["weight"] = distribution_weights(inputs, params, mask)
    by_token = AlignOPSD(config(**options)).auxiliary(targets, blank, blank)
    loss = (by_token * mask).sum() / mask.sum()
    return {
        "alpha": views.alpha,
        "ids": ids,
        "teacher_log_probs": (logits / params["distribution_temperature"]).log_softmax(-1),
        "token_weight": targets.get("weight", torch.ones(mask.shape))[:, 0],
        "loss_by_token": by_token.detach(),
        "loss": loss.item(),
        "grad_student_logits": torch.autograd.grad(loss, live)[0],
    }


@runner
def profiles_(inputs: Case, params: Case) -> Case:
    profile, valid = profiles(
        real(inputs["H"]),
        flag(inputs["structural_mask"]),
        params["similarity_threshold"],
        params["profile_temperature"],
    )
    return {"profile": profile, "profile_valid": valid.int()}


@runner
def divergence_(inputs: Case, params: Case) -> Case:
    left, right = real(inputs["left"]), real(inputs["right"])
    return {name: divergence(left, right, name) for name in ("jsd", "entropy", "cosine")}


@runner
def adjacent(inputs: Case, params: Case) -> Case:
    identity = identity_columns(inputs["identities"])
    profile, valid, mask = real(inputs["profile"]), flag(inputs["profile_valid"]), flag(inputs["structural_mask"])
    shift, counts = torch.zeros(len(valid), dtype=torch.float64, device=valid.device), torch.zeros_like(valid)
    for rows in Groups.of(*identity).by_task:
        shift[rows], counts[rows] = adjacent_divergence(profile[rows], valid[rows], mask[:, rows], identity[1][rows])
    return {"divergence": shift, "divergence_valid": counts.int(), "trajectories": Groups.of(*identity).by_rollout}


@runner
def threshold(inputs: Case, params: Case) -> Case:
    counting = real(inputs["divergence"])[flag(inputs["divergence_valid"])]
    quantile = boundary_quantile(counting, params["quantile"])
    return {"threshold": clip_threshold(quantile, params["threshold_min"], params["threshold_max"])}


def segmentations(shift: Any, counts: Any, identities: list[Any], params: Case, seed: int | None) -> Case:
    found = {"trajectories": [], "candidates": 0, "accepted": 0}
    for number, rows in enumerate(Groups.of(*identity_columns(identities)).by_rollout):
        arguments = [shift[row] for row in rows], [bool(counts[row]) for row in rows]
        limits = params["min_span"], params["max_span"], params["fallback_min"]
        if seed is None:
            cuts = segment(*arguments, params["threshold"], *limits)
        else:
            cuts = random_segment(*arguments, seed + number, *limits)
        found["candidates"] += cuts.candidates
        found["accepted"] += cuts.accepted
        found["trajectories"].append(
            {
                "task": identities[rows[0]][0],
                "rollout": identities[rows[0]][1],
                "turns": rows,
                "boundaries_threshold": cuts.threshold,
                "boundaries_guided": cuts.guided,
                "boundaries_forced": cuts.forced,
                "spans": cuts.spans,
            }
        )
    return found


@runner
def segment_(inputs: Case, params: Case) -> Case:
    shift = real(inputs["divergence"]).tolist()
    return segmentations(shift, inputs["divergence_valid"], inputs["identities"], params, None)


@runner
def random_spans(inputs: Case, params: Case) -> Case:
    shift = real(inputs["divergence"]).tolist()
    return segmentations(shift, inputs["divergence_valid"], inputs["identities"], params, params["seed"])


@runner
def turn_evidence_(inputs: Case, params: Case) -> Case:
    found = turn_evidence(
        matrix(inputs["rectified_gap"], real), matrix(inputs["policy_mask"], flag), real(inputs["advantage"])
    )
    return {"turn_gap": found.gap, "token_count": found.tokens, "turn_evidence": found.evidence}


@runner
def box_projection(inputs: Case, params: Case) -> Case:
    density, mass = (torch.tensor(inputs[name], dtype=torch.float64) for name in ("raw_density", "token_count"))
    one = torch.zeros(len(density), dtype=torch.int64)
    return {"projected_density": project_to_box(density, mass, one, params["density_floor"], params["density_cap"])}


def credited(
    gap: torch.Tensor,
    mask: torch.Tensor,
    advantage: torch.Tensor,
    identities: list[Any],
    params: Case,
    allocation: str,
    span: torch.Tensor | None = None,
) -> Case:
    rollout = Groups.of(*identity_columns(identities)).rollout
    found = turn_evidence(gap, mask, advantage)
    box = density_box(params["weighting"], params["density_cap"], params["band"])
    computed = {"turn_gap": found.gap, "turn_evidence": found.evidence}
    if allocation == "token":
        weight = token_weights(gap, mask, advantage, rollout, params["credit_temperature"], box)
        computed["turn_weight"] = torch.where(mask, weight, 0.0).sum(-1) / mask.sum(-1)
        computed["token_advantage"] = token_advantages(advantage[:, None] * weight, mask)
        return computed
    shared = allocate(
        found.evidence, found.tokens, rollout, rollout if span is None else span, params["credit_temperature"]
    )
    weight, projected = turn_weights(shared.density, found.tokens, rollout, advantage, params["mixing"], box)
    return computed | {
        "span_budget": shared.budget,
        "turn_share": shared.share,
        "raw_density": shared.density,
        "projected_density": projected,
        "turn_weight": weight,
        "token_advantage": token_advantages(advantage * weight, mask),
    }


def flat(inputs: Case, params: Case, allocation: str) -> Case:
    gap, mask = matrix(inputs["rectified_gap"], real), matrix(inputs["policy_mask"], flag)
    return credited(gap, mask, real(inputs["advantage"]).double(), inputs["identities"], params, allocation)


@runner
def flat_turn(inputs: Case, params: Case) -> Case:
    return flat(inputs, params, "turn")


@runner
def flat_token(inputs: Case, params: Case) -> Case:
    return flat(inputs, params, "token")


@runner
def advantage(inputs: Case, params: Case) -> Case:
    task, rollout, _ = identity_columns(inputs["identities"])
    scope, scale = params["normalization_scope"], params["normalize_by_std"]
    return {"advantage": rollout_advantage(real(inputs["reward"]), Groups.of(task, rollout), scope, scale)}


@runner
def invalid_residual(inputs: Case, params: Case) -> Case:
    task, _, _ = identity_columns(inputs["identities"])
    residual = invalid_action_residual(
        real(inputs["reward"]),
        flag(inputs["action_valid"]),
        task,
        params["invalid_penalty"],
        params["normalize_by_std"],
    )
    mask = matrix(inputs["policy_mask"], flag)
    return {
        "invalid_residual": residual,
        "token_residual": token_advantages(torch.zeros_like(residual), mask, residual),
    }


@runner
def alignment_loss(inputs: Case, params: Case) -> Case:
    log_probs = matrix(inputs["student_log_probs"], real).requires_grad_()
    mask = matrix(inputs["policy_mask"], flag)
    weight = real([1.0] * len(mask) if inputs["row_weight"] is None else inputs["row_weight"])[:, None] * mask
    trust = gate(matrix(inputs["rectified_gap"], real), params["gate_beta"])

    def token_mean(values: torch.Tensor) -> torch.Tensor:
        return (values * weight).sum() / weight.sum()

    loss = token_mean(weighted_gap(log_probs, matrix(inputs["rectified_log_probs"], real), trust))
    loss.backward()
    return {
        "loss": loss.detach(),
        "gradient": log_probs.grad,
        "gate_mean": token_mean(trust),
        "gate_active": token_mean((trust > 0.5).float()),
    }
