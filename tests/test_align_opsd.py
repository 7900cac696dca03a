"""The method against a teacher made of tables: whole pipelines, its calls, its ablations, and odd batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_method_vectors import TOLERANCE, Case, cases, flag, identity_columns, matched_views, matrix, padded, real

from alignopsd_trl.methods.base import get_method
from alignopsd_trl.turns import Thought, Turn, TurnBatch, parse_response

DEFAULTS: Case = {
    "similarity_threshold": 0.8,
    "top_k": 3,
    "aggregation_temperature": 0.1,
    "aggregation": "probability_mixture",
    "alpha_max": 0.8,
    "action_filter": "cosine",
    "action_threshold": 0.8,
    "profile_temperature": 0.1,
    "profile_distance": "jsd",
    "boundary_quantile": 0.8,
    "boundary_min": 0.01,
    "boundary_max": 0.1,
    "min_span": 2,
    "max_span": 8,
    "credit_temperature": 0.5,
    "credit_mixing": 0.5,
    "density_cap": 4.0,
    "weighting": "capped",
    "band": 0.5,
    "allocation": "span",
    "rectify": True,
    "random_span_seed": 0,
    "group_statistics": "trajectory",
    "scale_rewards": "group",
    "invalid_action_penalty": 0.0,
    "auxiliary_loss": "none",
    "auxiliary_coefficient": 0.01,
    "gate_beta": 5.0,
}


def config(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**(DEFAULTS | changes))


class TableTeacher:
    """Answers from tables and remembers what it was asked.

    Args:
        thoughts: of the privileged view.
        embeddings: text -> vector.
        views: (source, target) -> log-probs.
        others: divergences of other processes.
    """

    def __init__(self, thoughts: list[Thought], embeddings: dict, views: Any, others: Sequence[float] = ()):
        self._thoughts, self._embeddings, self._views, self._others = thoughts, embeddings, views, others
        self.calls: list[str] = []
        self.encoded: list[str] = []
        self.pairs: list[tuple[int, int]] = []

    def thoughts(self, batch: TurnBatch) -> list[Thought]:
        self.calls.append("thoughts")
        return self._thoughts

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        self.calls.append("encode")
        self.encoded = list(texts)
        width = len(next(iter(self._embeddings.values()))) if self._embeddings else 3
        rows = [torch.tensor(self._embeddings[text], dtype=torch.float32) for text in texts]
        return torch.stack(rows) if rows else torch.zeros(0, width)

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls.append("score")
        self.pairs = list(zip(source.tolist(), target.tolist(), strict=True))
        rows = [self._views(*pair) for pair in self.pairs]
        return torch.stack(rows) if rows else torch.zeros(0, batch.policy_mask.shape[1])

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        self.calls.append("gather")
        return torch.cat([values, torch.tensor(self._others, dtype=values.dtype)])


def turn(number: int, thought: Thought) -> Turn:
    return Turn(number, "", [], [], [], "", thought, thought.action, True, "")


def batch_of(
    identities: list[Any],
    thoughts: list[Thought],
    mask: torch.Tensor,
    reward: torch.Tensor,
    student: torch.Tensor | None,
    action_valid: torch.Tensor | None = None,
) -> TurnBatch:
    task, rollout, number = identity_columns(identities)
    return TurnBatch(
        turns=[turn(at, thought) for at, thought in zip(number.tolist(), thoughts, strict=True)],
        task=task,
        rollout=rollout,
        turn=number,
        response_ids=torch.zeros_like(mask, dtype=torch.int64),
        policy_mask=mask,
        reward=reward,
        action_valid=torch.ones(len(reward), dtype=torch.bool) if action_valid is None else action_valid,
        student_log_probs=student,
    )


# Whole pipelines of the vectors, through the method's own wiring


PIPELINES = [param for param in cases() if param.values[0] == "pipeline"]


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


@pytest.mark.parametrize(("kind", "case"), PIPELINES)
def test_method_gives_the_pipeline_vectors(kind: str, case: Case) -> None:
    batch, teacher = pipeline_inputs(case["inputs"])
    method = get_method("align_opsd")(pipeline_config(case["params"]))
    credit = method.assign(batch, teacher, step=0)
    expected = case["expected"]
    torch.testing.assert_close(credit.advantages, real(expected["final_token_advantage"]), atol=TOLERANCE, rtol=0)
    for name, column in {"turn_weight": "weight", "turn_evidence": "evidence", "rho": "rho", "alpha": "alpha"}.items():
        assert credit.trace[column] == pytest.approx(expected[name], abs=TOLERANCE), column
    assert credit.trace["sources"] == expected["sources"]
    if "threshold" in expected and case["params"]["allocation"] == "adaptive":
        assert credit.metrics.get("spans/threshold") == pytest.approx(expected["threshold"], abs=TOLERANCE)
    assert teacher.calls[:2] == ["thoughts", "encode"] and teacher.calls.count("score") == 1
