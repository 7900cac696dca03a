"""The formulas of the methods that AlignOPSD is compared with: token advantages, and auxiliary losses per token.

Shapes as everywhere: ``M`` turns, ``L`` response tokens. Losses come back per token, ``(M, L)``, before masking and the
token mean, since the trainer takes one mean over the global batch. Teacher scores never carry a gradient. Any floating
dtype goes through unchanged; gaps need float32 at least.

Symbols: ``log_probs`` l of the current policy (with gradient), ``old`` l under the rollout snapshot, ``teacher`` l+
under the privileged view, ``gap`` l+ - old, ``advantage`` A of each turn's rollout.
"""

from __future__ import annotations

import torch
from torch.nn.functional import log_softmax

from alignopsd_trl.methods.grpo import EPSILON, segment_sum
from alignopsd_trl.turns import Groups

MAX_LOG_IMPORTANCE = 10.0
MAX_NEGATIVE_LOG_RATIO = 20.0

# Auxiliary losses per token


def sampled_token_loss(log_probs: torch.Tensor, teacher: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Returns -sg(rho (l+ - l)) l with rho = exp(l - old): its expected gradient is that of KL(student || teacher).

    On-policy (rho = 1) this is the sampled-token distillation loss; rho, bounded in the exponent, keeps it unbiased
    over further optimiser steps of the batch.
    """
    with torch.no_grad():
        weight = (log_probs - old).clamp(max=MAX_LOG_IMPORTANCE).exp() * (teacher - log_probs)
    return -weight * log_probs


def gate(gap: torch.Tensor, beta: float) -> torch.Tensor:
    """Returns sigmoid(beta * gap), without gradient: how far the teacher's view of a token is trusted."""
    return torch.sigmoid(beta * gap.detach())


def weighted_gap(log_probs: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns weight (l+ - l), whose gradient is -weight and flows through ``log_probs`` alone."""
    return weight.detach() * (teacher.detach() - log_probs)


def gated_loss(log_probs: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Returns g (l+ - l) with the detached gate g = sigmoid(beta (l+ - l)) of the current policy; beta = 0: g = 1/2.

    The gradient with respect to l is -g: every sampled token is pushed up, more so if the teacher prefers it.
    The value is about -KL and rises toward 0 as the policy approaches the teacher.
    """
    return weighted_gap(log_probs, teacher, gate(teacher - log_probs, beta))


def weighted_k3_loss(log_probs: torch.Tensor, teacher: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Returns rho k3 for each token: rho = exp(l - old), k3 = exp(-d) - 1 + d, d = l - l+, both exponents bounded.

    The gradient runs through both factors. Its value with respect to l is rho d, which is the gradient of the reverse
    KL, on- and off-policy. With a detached rho it would be that of the forward KL.
    """
    difference = log_probs - teacher
    k3 = (-difference).clamp(max=MAX_NEGATIVE_LOG_RATIO).exp() - 1 + difference
    return (log_probs - old).clamp(max=MAX_LOG_IMPORTANCE).exp() * k3


def divergence_loss(
    logits: torch.Tensor, teacher_logits: torch.Tensor, beta: float, temperature: float
) -> torch.Tensor:
    """Returns beta KL(teacher || M) + (1 - beta) KL(student || M), ``(...)``, M = (1 - beta) student + beta teacher.

    Args:
        logits, teacher_logits: ``(..., V)`` of the same V tokens: all of them, or the teacher's likeliest.
        beta: 0 is KL(teacher || student), 1 is KL(student || teacher).
    """
    student = log_softmax(logits / temperature, -1)
    teacher = log_softmax(teacher_logits.detach() / temperature, -1)
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    weights = torch.tensor([1 - beta, beta], dtype=student.dtype, device=student.device).log()
    mixture = torch.logsumexp(torch.stack([student + weights[0], teacher + weights[1]]), 0)
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)


# Token weights


def mixing_weight(step: int, initial: float, decay_steps: int, warmup_steps: int = 0) -> float:
    """Returns lambda in round ``step``, counted from 1: a linear rise over the warm-up, then a linear fall.

    ``decay_steps=0`` keeps it constant after the warm-up.
    """
    if step < warmup_steps:
        return initial * step / warmup_steps
    if decay_steps == 0:
        return initial
    return initial * max(0.0, 1.0 - (step - warmup_steps) / decay_steps)


def bounded_weight(advantage: torch.Tensor, evidence: torch.Tensor, band: float, shape: str = "exp") -> torch.Tensor:
    """Returns clip(f(sgn(A) e), 1 - band, 1 + band), 1 where A = 0; f is ``"exp"``, or ``"sigmoid"`` for 2 sigmoid(.).

    The sign gives a failed rollout's token more weight where the teacher *disprefers* it.

    Args:
        evidence: ``(M,)`` or ``(M, L)`` gaps.
    """
    exponent = advantage.sign().reshape(-1, *[1] * (evidence.ndim - 1)) * evidence
    # bounded before the exponential, so that no gap overflows; the bound lies beyond the clip range
    raw = exponent.clamp(max=MAX_LOG_IMPORTANCE).exp() if shape == "exp" else 2 * torch.sigmoid(exponent)
    return raw.clamp(1 - band, 1 + band)


def rlsd_weight(advantage: torch.Tensor, gap: torch.Tensor, band: float, negative_only: bool = False) -> torch.Tensor:
    """Returns clip(exp(sgn(A) gap), 1 - band, 1 + band) per token; with ``negative_only`` 1 wherever A >= 0."""
    weight = bounded_weight(advantage, gap, band)
    return torch.where(advantage[:, None] < 0, weight, 1.0) if negative_only else weight


def turn_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the mean over the masked tokens of each turn, ``(M,)``; 0 for a turn without any."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp_min(1)


def mix(advantage: torch.Tensor, weight: torch.Tensor, mixing: float) -> torch.Tensor:
    """Returns A ((1 - lambda) + lambda w), with A ``(M,)`` broadcast over the columns of ``weight``."""
    return advantage.reshape(-1, *[1] * (weight.ndim - 1)) * ((1 - mixing) + mixing * weight)


def equalise_steps(
    token_advantage: torch.Tensor, mask: torch.Tensor, groups: Groups, ratio: float = 2.0
) -> torch.Tensor:
    """Rescales each turn toward the mean |advantage| of its rollout's turns, by a factor in [1/ratio, ratio].

    Rollouts of one turn and turns without tokens stay unchanged. The sum over the rollout's tokens is not conserved.
    Advantages and mask are ``(M, L)``, as is the result, 0 outside the mask.
    """
    masked, rollout, count = token_advantage * mask, groups.rollout, groups.rollouts
    tokens = mask.sum(-1).to(masked.dtype)
    size = masked.abs().sum(-1) / tokens.clamp_min(1)
    turns = segment_sum((tokens > 0).to(masked.dtype), rollout, count)
    mean = (segment_sum(size, rollout, count) / turns.clamp_min(1))[rollout]
    factor = (mean / (size + EPSILON)).clamp(1 / ratio, ratio)
    return masked * torch.where(turns[rollout] > 1, factor, 1.0)[:, None]


# Turn-level credit


def discounted_returns(reward: torch.Tensor, groups: Groups, gamma: float) -> torch.Tensor:
    """Returns G_k = r_k + gamma G_{k+1} within each rollout, ``(M,)``; rows may come in any order."""
    table = turn_table(reward, groups)
    for column in range(table.size(1) - 2, -1, -1):
        table[:, column] += gamma * table[:, column + 1]
    return table[groups.rollout, groups.position]


def belief_recursion(
    evidence: torch.Tensor, prior: torch.Tensor, groups: Groups, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns beliefs B_k = sigmoid(logit(B_0) + c_k), c_k = gamma c_{k-1} + e_k, and their steps, ``(M,)`` each.

    Args:
        evidence: ``(M,)`` sums of the gap over each turn.
        prior: ``(M,)`` B_0, inside (0, 1).
    """
    table, place = turn_table(evidence, groups), (groups.rollout, groups.position)
    for column in range(1, table.size(1)):
        table[:, column] += gamma * table[:, column - 1]
    start = table.new_zeros(len(table))
    start[groups.rollout] = prior
    beliefs = torch.sigmoid(torch.logit(start)[:, None] + torch.cat([torch.zeros_like(table[:, :1]), table], 1))
    return beliefs[:, 1:][place], beliefs.diff(dim=1)[place]


def turn_table(values: torch.Tensor, groups: Groups, before: int = 0, fill: float = 0.0) -> torch.Tensor:
    """Arranges values in one row per rollout: ``before`` times ``fill``, its turns in order, and then ``fill``, once or
    more."""
    turns = int(groups.position.max()) + 1 if len(values) else 0
    table = values.new_full((groups.rollouts, before + turns + 1), fill)
    table[groups.rollout, before + groups.position] = values
    return table


def belief_advantage(
    mode: str,
    advantage: torch.Tensor,
    steps: torch.Tensor,
    outcome: torch.Tensor,
    prior: torch.Tensor,
    groups: Groups,
    mixing: float,
    band: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns multipliers and turn advantages from the steps B_k - B_{k-1} of a belief, ``(M,)`` each.

    ``"signed"`` and ``"magnitude"``: A ((1 - lambda) + lambda w) with w = clip(1 + band z(q), 1 - band, 1 + band),
    q = sgn(A) step or |step|, and z standardising within the rollout (biased deviation; w = 1 for a single turn).
    ``"telescoping"`` and ``"anchored"``: (1 - lambda) A + lambda T, where T distributes outcome - B_0 over the turns.
    ``"telescoping"`` does so in proportion to the steps; ``"anchored"`` takes the steps with the last belief replaced
    by the outcome. The multiplier is then 1. The formulas of "magnitude" and "anchored" are inferred from their names.
    """
    group, count = groups.rollout, groups.rollouts
    size = segment_sum(torch.ones_like(steps), group, count)[group]
    if mode in ("telescoping", "anchored"):
        travelled = segment_sum(steps, group, count)[group]
        if mode == "telescoping":
            share = torch.where(travelled == 0, 1 / size, steps / travelled)
            target = (outcome - prior) * share
        else:
            target = torch.where(groups.position == size - 1, outcome - prior - travelled + steps, steps)
        return torch.ones_like(steps), (1 - mixing) * advantage + mixing * target
    q = advantage.sign() * steps if mode == "signed" else steps.abs()
    centred = q - segment_sum(q, group, count)[group] / size
    deviation = (segment_sum(centred.square(), group, count)[group] / size).sqrt()
    weight = (1 + band * centred / (deviation + EPSILON)).clamp(1 - band, 1 + band)
    weight = torch.where(size > 1, weight, 1.0)
    return weight, mix(advantage, weight, mixing)


def success_rate(outcome: torch.Tensor, groups: Groups, clip: float = 1e-4) -> torch.Tensor:
    """Returns the prior belief, ``(M,)``: the task's mean outcome over rollouts, clipped to [clip, 1 - clip]."""
    task, tasks = groups.task, groups.tasks
    share = 1 / torch.bincount(groups.rollout, minlength=groups.rollouts).to(outcome.dtype)[groups.rollout]
    rate = segment_sum(outcome * share, task, tasks) / segment_sum(share, task, tasks)
    return rate[task].clamp(clip, 1 - clip)
