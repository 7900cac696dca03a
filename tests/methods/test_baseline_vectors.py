"""Every ``*.json`` of ``ALIGNOPSD_BASELINE_VECTORS`` (default: tests/data/baselines), each to its header's tolerance.

The header's ``method`` chooses the check. A check returns what the case expects, by name; gradients are those of
autograd with respect to the input that the case differentiates.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alignopsd_trl.methods import get_method
from alignopsd_trl.methods import objectives as o
from alignopsd_trl.methods.beacon import Segments
from alignopsd_trl.methods.grpo import normalise
from alignopsd_trl.methods.state_credit import (
    generalised_advantage,
    graph_returns,
    grouped_values,
    hierarchical_advantage,
    history_groups,
)
from alignopsd_trl.turns import Groups, number_rows

FOLDER = Path(os.environ.get("ALIGNOPSD_BASELINE_VECTORS", Path(__file__).parents[1] / "data" / "baselines"))
CHECKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
# The release divides token means by (mask sum + 1e-8); the tolerances of those files allow for it.


def check(function: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    CHECKS[function.__name__] = function  # ty: ignore[missing-attribute]
    return function


def cases() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for case in content["cases"]:
            yield pytest.param(content["header"], case, id=case["id"])


@pytest.mark.parametrize(("header", "case"), list(cases()))
def test_vector(header: dict[str, Any], case: dict[str, Any]) -> None:
    found = CHECKS[header["method"]](case)
    tolerance = {"atol": header["tolerance"]["abs"], "rtol": header["tolerance"]["rel"]}
    for name, expected in case["expected"].items():
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(
            torch.as_tensor(found[name], dtype=torch.float64), wanted, **tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_all_methods_have_vectors() -> None:
    methods = {json.loads(path.read_text(encoding="utf-8"))["header"]["method"] for path in FOLDER.glob("*.json")}
    assert methods and methods <= set(CHECKS)


# Reading cases


def tensors(case: dict[str, Any]) -> SimpleNamespace:
    """Inputs as float64 tensors; identities as integers; other columns as they are."""
    inputs = dict(case["inputs"])
    names = [*inputs.get("anchor_state", []), *inputs.get("next_state", [])]
    for name in ("anchor_state", "next_state"):
        if name in inputs:
            inputs[name] = torch.tensor([sorted(set(names)).index(value) for value in inputs[name]])
    for name in ("task", "rollout"):
        if name in inputs:
            inputs[name] = torch.tensor([sorted(set(inputs[name])).index(value) for value in inputs[name]])
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor) and name not in ("step_spans_inclusive", "milestone"):
            inputs[name] = torch.tensor(value, dtype=torch.int64 if name == "turn" else torch.float64)
    inputs.setdefault("mask", torch.empty(0))
    return SimpleNamespace(**inputs)


def mean(values: torch.Tensor, mask: torch.Tensor, how: str = "token-mean") -> torch.Tensor:
    if how == "token-mean":
        return (values * mask).sum() / mask.sum()
    rows = (values * mask).sum(-1)
    return (rows if how == "seq-mean-token-sum" else rows / mask.sum(-1)).mean()


def gradient(loss: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, of, retain_graph=True)[0]


def clipped(
    log_probs: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, low: float, high: float, dual: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """TRL's clipped loss per token (epsilon, epsilon_high, delta), and where its two bounds act."""
    ratio = (log_probs - old).exp()
    plain, bounded = -advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high)
    inner = torch.maximum(plain, bounded)
    loss = torch.where(advantage < 0, torch.minimum(inner, -dual * advantage), inner)
    return loss, bounded > plain, (advantage < 0) & (inner > -dual * advantage)


def grpo_rows(reward: torch.Tensor, task: torch.Tensor, scale: bool, population: torch.Tensor | None = None) -> Any:
    """The release takes mean 0 and deviation 1 for a group of one, which keeps its raw reward; ours is 0."""
    count = int(task.max()) + 1
    counted = torch.ones_like(reward) if population is None else population.double()
    alone = o.segment_sum(counted, task, count)[task] < 2
    raw = reward / (1 + o.EPSILON) if scale else reward
    return torch.where(alone, raw, normalise(reward, task, count, population, scale))


# One check a file


@check
def grpo_advantage(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    assert h["epsilon"] == o.EPSILON
    rollouts = list(zip(x.task.tolist(), x.rollout.tolist(), strict=True))
    first = torch.tensor([rollouts.index(pair) == row for row, pair in enumerate(rollouts)])
    population = first if h["statistics_over"] == "trajectories" else None
    return {"row_advantage": grpo_rows(x.row_reward, x.task, h["normalise_by_std"], population)}


@check
def policy_loss(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    live = x.log_probs.requires_grad_()
    loss, is_clipped, is_dual = clipped(
        live, x.old_log_probs, x.token_advantage, h["clip_low"], h["clip_high"], h["dual_clip"]
    )
    total = mean(loss, x.mask, "token-mean" if h["aggregation"].startswith("token-mean") else h["aggregation"])
    return {
        "loss": total,
        "grad_log_probs": gradient(total, live),
        "clip_fraction": mean(is_clipped.double(), x.mask),
        "dual_clip_fraction": mean(is_dual.double(), x.mask),
    }


@check
def opsd_sampled_token(case: dict[str, Any]) -> dict[str, Any]:
    x = tensors(case)
    live = x.student_log_probs.requires_grad_()
    loss = mean(o.sampled_token_loss(live, x.teacher_log_probs, live.detach()), x.mask)
    return {"loss": loss, "grad_student_log_probs": gradient(loss, live)}


@check
def opsd_divergence(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    live, logits, teacher = x.student_logits.requires_grad_(), x.student_logits, x.teacher_logits
    if h["teacher_top_k"] is not None:  # the teacher's likeliest tokens and the live logits of them
        teacher, kept = teacher.topk(min(h["teacher_top_k"], teacher.size(-1)), dim=-1)
        logits = live.gather(-1, kept)
    per_token = o.divergence_loss(logits, teacher, h["beta"], h["temperature"])
    loss = mean(per_token, x.mask)
    return {"loss": loss, "grad_student_logits": gradient(loss, live)}


@check
def sdar(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    live = x.student_log_probs.requires_grad_()
    loss = mean(o.gated_loss(live, x.teacher_log_probs, h["gate_beta"]), x.mask, h["aggregation"])
    gap = (x.teacher_log_probs - live).detach()
    gate = torch.sigmoid(h["gate_beta"] * gap)
    return {
        "loss": loss,
        "grad_student_log_probs": gradient(loss, live),
        "gate": gate,
        "gate_mean": mean(gate, x.mask),
        "gate_active_ratio": mean((gate > 0.5).double(), x.mask),
        "gap_mean": mean(gap, x.mask),
    }


@check
def skill_sd(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    assert (h["max_negative_log_ratio"], h["max_log_importance"]) == (o.MAX_NEGATIVE_LOG_RATIO, o.MAX_LOG_IMPORTANCE)
    live = x.student_log_probs.requires_grad_()
    loss = mean(o.weighted_k3_loss(live, x.teacher_log_probs, x.old_log_probs), x.mask, h["aggregation"])
    return {"loss": loss, "grad_student_log_probs": gradient(loss, live)}


@check
def rlsd(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    gap = x.teacher_log_probs - x.student_log_probs
    weight = o.rlsd_weight(x.row_advantage, gap, h["clip_eps"], h["negative_only"])
    return {"token_advantage": o.mix(x.row_advantage, weight, h["lambda"]) * x.mask}


@check
def stepopsd(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    assert h["step_norm_eps"] == o.EPSILON
    weight = o.bounded_weight(x.trajectory_advantage, x.token_gap, h["alpha_clip"], h["weight_fn"])
    shaped = o.mix(x.trajectory_advantage, weight, h["lambda_mix"]) * x.mask
    if h["step_norm"] == "equal_step_mean_abs":
        for row, spans in enumerate(x.step_spans_inclusive):  # our turns are rows, so each span becomes one
            position = torch.arange(shaped.size(1))
            inside = torch.stack([(position >= start) & (position <= end) for start, end in spans] or [position < 0])
            inside &= x.mask[row].bool()
            one = torch.zeros(len(inside), dtype=torch.int64)
            tokens = shaped[row].expand(len(inside), -1)
            rescaled = o.equalise_steps(tokens, inside, Groups.of(one, one), h["step_coef_clip"])
            shaped[row] = torch.where(inside.any(0), rescaled.sum(0), shaped[row])
    return {"token_weight": weight * x.mask, "token_advantage": shaped}


@check
def schedules(case: dict[str, Any]) -> dict[str, Any]:
    h = case["hyperparameters"]
    decay = h.get("warmdown_steps", h.get("decay_steps"))
    return {"lambda": o.mixing_weight(case["inputs"]["global_step"], h["lambda0"], decay, h.get("warmup_steps", 0))}


STRATEGIES = {"grpo_opsd_release": ("grpo_opsd", "constant_gate"), "opsd_release": ("opsd", "gated")}


@check
def composite(case: dict[str, Any]) -> dict[str, Any]:
    """The loss of one update as our methods compose it: coefficients and auxiliary loss are asked from the method."""
    x, h = tensors(case), case["hyperparameters"]
    name, form = STRATEGIES.get(case["strategy"], (case["strategy"], None))
    method = get_method(name)(SimpleNamespace(method_options={"form": form} if form else {}))
    live = x.log_probs.requires_grad_()
    advantage = x.row_advantage[:, None].expand_as(live)
    if name == "rlsd":
        weight = o.rlsd_weight(x.row_advantage, x.teacher_log_probs - x.old_log_probs, method.options.band)
        advantage = o.mix(x.row_advantage, weight, h["lambda"])
    policy = mean(clipped(live, x.old_log_probs, advantage, h["clip"], h["clip"], h["dual_clip"])[0], x.mask)
    difference = x.ref_log_probs - live
    kl = mean((difference.exp() - difference - 1).clamp(-10, 10), x.mask)
    auxiliary = torch.zeros(())
    if method.auxiliary_weight:
        auxiliary = mean(method.auxiliary({"teacher": x.teacher_log_probs}, live, x.old_log_probs), x.mask)
    assert (method.policy_weight, method.auxiliary_weight) == (h["policy_coefficient"], h["aux_coefficient"])
    total = method.policy_weight * policy + h["kl_coefficient"] * kl + method.auxiliary_weight * auxiliary
    return {
        "policy_loss": policy,
        "kl_loss": kl,
        "aux_loss": auxiliary,
        "total_loss": total,
        "grad_log_probs": gradient(total, live),
    }


@check
def agentopsd_turn(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    assert h["eps"] == o.EPSILON
    gap = (x.teacher_log_probs - x.student_log_probs) * x.mask
    groups = Groups.of(x.task, x.rollout, x.turn)
    prior = o.success_rate(x.outcome, groups, h["v0_clip"])
    if case["mode"] == "tether":
        weight = o.bounded_weight(x.row_advantage, o.turn_mean(gap, x.mask.bool()), h["band"])
        belief, advantage = torch.zeros_like(weight), o.mix(x.row_advantage, weight, h["lambda"])
    else:
        belief, steps = o.belief_recursion(gap.sum(-1), prior, groups, h["gamma"])
        weight, advantage = o.belief_advantage(
            case["mode"], x.row_advantage, steps, x.outcome, prior, groups, h["lambda"], h["band"]
        )
    return {"prior": prior, "belief": belief, "multiplier": weight, "turn_advantage": advantage}


@check
def gigpo(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    assert h["epsilon"] == o.EPSILON
    scale = h["mode"] == "mean_std_norm"
    returns = o.discounted_returns(x.step_reward, Groups.of(torch.zeros_like(x.rollout), x.rollout, x.turn), h["gamma"])
    group = number_rows(x.task, x.anchor_state)
    step = normalise(returns, group, int(group.max()) + 1, scale=scale)
    episode = grpo_rows(x.episode_reward, x.task, scale)
    expected = torch.tensor(case["expected"]["state_group"])
    same = (group[:, None] == group).equal(expected[:, None] == expected)  # labels are free up to renaming
    return {
        "discounted_return": returns,
        "state_group": expected if same else group,
        "episode_advantage": episode,
        "step_advantage": step,
        "row_advantage": episode + h["step_weight"] * step,
    }


def grouped(x: SimpleNamespace) -> tuple[Groups, torch.Tensor]:
    """The groups of rows and the number of each row's state in its task."""
    return Groups.of(x.task, x.rollout, x.turn), number_rows(x.task, x.anchor_state)


@check
def hgpo(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    groups, _ = grouped(x)
    returns = o.discounted_returns(x.step_reward, groups, h["gamma"])
    levels = history_groups(groups, x.anchor_state, h["history"])
    step = hierarchical_advantage(returns, levels, h["exponent"], h["scale"])
    return {"discounted_return": returns, "step_advantage": step}


@check
def graphgpo(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    groups, state = grouped(x)
    returns = graph_returns(x.step_reward, groups.task, x.anchor_state, x.next_state, h["omega"])
    return {"graph_return": returns, "step_advantage": normalise(returns, state, len(state), scale=h["scale"])}


@check
def gagpo(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    groups, state = grouped(x)
    values = grouped_values(o.discounted_returns(x.step_reward, groups, h["gamma"]), state)
    raw = generalised_advantage(x.step_reward, values, groups, h["gamma"], h["lambda"])
    step = normalise(raw, groups.task, groups.tasks, scale=h["scale"])
    return {"state_value": values, "generalised_advantage": raw, "step_advantage": step}


@check
def beacon(case: dict[str, Any]) -> dict[str, Any]:
    x, h = tensors(case), case["hyperparameters"]
    parts = Segments.of(x.milestone, Groups.of(x.task, x.rollout, x.turn))
    reward = parts.rewards(h["reward"], h["gamma"])
    group = number_rows(x.task, parts.before if h["attempts"] else parts.milestone)
    return {"segment_reward": reward, "segment_advantage": normalise(reward, group, len(group), scale=h["scale"])}


@check
def opid(case: dict[str, Any]) -> dict[str, Any]:
    """No row of the table: it needs skills written per trajectory and per turn. Its outcome advantage is ours; what
    hindsight adds, w_st gap_st where a turn has a step skill and else w_ep gap_ep, stands here for whoever adds it."""
    x, h = tensors(case), case["hyperparameters"]
    mask, has_step = x.mask.bool(), x.uses_step_skill.bool()[:, None]
    added = torch.zeros_like(x.old_log_probs)
    for teacher, chosen, weight in (
        (x.episode_teacher_log_probs, ~has_step, h["episode_weight"]),
        (x.step_teacher_log_probs, has_step, h["step_weight"]),
    ):
        gap, used = teacher - x.old_log_probs, mask & chosen
        if h["normalise"] and used.any():
            gap = (gap - gap[used].mean()) / (gap[used].std(unbiased=False) + o.EPSILON)
        gap = gap if h["clip"] is None else gap.clamp(-h["clip"], h["clip"])
        added = added + torch.where(used, weight * gap, 0.0)
    return {
        "token_advantage": grpo_rows(x.episode_reward, x.task, h["mode"] == "mean_std_norm")[:, None] * x.mask + added
    }
