"""Decision-state correspondence: which sibling turns face the same decision as a target turn.

    identities ──► task_groups ──► per group:  H ──► eligible ──► Psi (select_sources) ──► action filter

Everything is per task group, with the group's m rows in canonical order (`task_groups` puts them so): siblings only
meet siblings, and a tie goes to the smaller identity because it goes to the smaller row. Matrices are
``[source, target]``. Tensors only: no model, no process, no environment.

Sources: the paper's section "Decision-Aligned Supervision Rectification"; method facts A.4, A.5 and C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Identity = tuple[str, str, int]

_WEBSHOP_ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)


@dataclass(frozen=True)
class Canonical:
    """Rows of a batch and the turns they are copies of.

    Attributes:
        identities: the distinct turns, sorted: ids compared as strings, then the turn number.
        row_to_canonical: for each row the position of its turn in ``identities``.
        canonical_to_rows: for each turn its rows, rising; the first one is the copy that statistics use.
        row_weight: loss weight of each row, one over its number of copies.
    """

    identities: list[Identity]
    row_to_canonical: list[int]
    canonical_to_rows: list[list[int]]
    row_weight: list[float]


def canonicalize(rows: Sequence[Identity]) -> Canonical:
    """Sorts identities and merges copies that exist only to fill a batch (method facts A.4 and A.5)."""
    identities = sorted({(str(task), str(rollout), int(turn)) for task, rollout, turn in rows})
    position = {identity: number for number, identity in enumerate(identities)}
    row_to_canonical = [position[str(task), str(rollout), int(turn)] for task, rollout, turn in rows]
    canonical_to_rows: list[list[int]] = [[] for _ in identities]
    for row, turn in enumerate(row_to_canonical):
        canonical_to_rows[turn].append(row)
    weight = [1.0 / len(canonical_to_rows[turn]) for turn in row_to_canonical]
    return Canonical(identities, row_to_canonical, canonical_to_rows, weight)


def task_groups(task: torch.Tensor, rollout: torch.Tensor, turn: torch.Tensor) -> list[torch.Tensor]:
    """Rows of each task, in canonical order.

    Args:
        task, rollout, turn: ``(M,)`` integers that rise with the identities' order.

    Returns:
        One ``(m,)`` int64 tensor of row numbers a task, tasks rising. Empty for M = 0.
    """
    order = torch.argsort(turn, stable=True)
    order = order[torch.argsort(rollout[order], stable=True)]
    order = order[torch.argsort(task[order], stable=True)]
    sizes = torch.unique_consecutive(task[order], return_counts=True)[1]
    return list(order.split(sizes.tolist())) if len(order) else []


def unit_rows(embedding: torch.Tensor) -> torch.Tensor:
    """Rows scaled to length 1 in float32; a zero row stays zero."""
    embedding = embedding.detach().float()
    length = embedding.norm(dim=-1, keepdim=True)
    return embedding / length.masked_fill(length == 0, 1.0)


def cosine(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Correspondence matrix H (the paper's equation of the decision-alignment operator; method facts C.12).

    Args:
        source: ``(S, D)`` embeddings of the teacher's thinking, of any length; zero rows where it is invalid.
        target: ``(T, D)`` of the student's.

    Returns:
        ``(S, T)`` float32 in [-1, 1].
    """
    return (unit_rows(source) @ unit_rows(target).T).clamp(-1.0, 1.0)


def eligibility(
    rollout: torch.Tensor,
    teacher_valid: torch.Tensor,
    student_valid: torch.Tensor,
    protocol: torch.Tensor | None = None,
) -> torch.Tensor:
    """The structural mask of one task group (method facts C.13).

    Args:
        rollout: ``(m,)`` integers.
        teacher_valid, student_valid: ``(m,)`` bool, whether the thinking parsed. The source needs its teacher's, the
            target its student's; the source's own student thinking does not matter.
        protocol: ``(m,)`` integer labels of the data source that must agree, if rows carry them.

    Returns:
        ``(m, m)`` bool.
    """
    eligible = rollout[:, None] != rollout[None, :]
    eligible &= teacher_valid.bool()[:, None] & student_valid.bool()[None, :]
    if protocol is not None:
        eligible &= protocol[:, None] == protocol[None, :]
    return eligible


def select_sources(
    similarity: torch.Tensor, eligible: torch.Tensor, rollout: torch.Tensor, threshold: float, top_k: int
) -> torch.Tensor:
    """The operator Psi: threshold, best turn of each sibling, best K siblings (method facts C.14).

    Args:
        similarity: ``(m, m)`` H of one task group in canonical order.
        eligible: ``(m, m)`` bool.
        rollout: ``(m,)`` integers, each rollout's rows adjacent.
        threshold: gamma_H, inclusive, compared in the precision of H.
        top_k: K.

    Returns:
        ``(m, K)`` int64: rows of the retained sources of each target, best first, ties to the smaller identity, -1
        where there is none.
    """
    similarity = similarity.detach()
    candidate = eligible.bool() & (similarity >= threshold)
    best, row = _best_of_each_rollout(similarity.masked_fill(~candidate, -torch.inf), rollout)
    order = best.argsort(dim=0, descending=True, stable=True)[:top_k]
    chosen = torch.where(best.gather(0, order) > -torch.inf, row.gather(0, order), -1).T
    return torch.nn.functional.pad(chosen, (0, top_k - chosen.shape[1]), value=-1)


def _best_of_each_rollout(score: torch.Tensor, rollout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(G, m)`` best score of each rollout for each target, and the first row that has it."""
    number, length = torch.unique_consecutive(rollout, return_inverse=True, return_counts=True)[1:]
    start = length.cumsum(0) - length
    position = torch.arange(len(rollout), device=rollout.device) - start[number]
    padded = score.new_full((len(length), int(length.max()), score.shape[1]), -torch.inf)
    padded[number, position] = score
    best, at = padded.max(dim=1)
    return best, at + start[:, None]


def accept_actions(
    source_actions: Sequence[str],
    target_actions: Sequence[str],
    similarity: torch.Tensor,
    threshold: float,
    rule: str = "cosine",
    source: torch.Tensor | None = None,
    target: torch.Tensor | None = None,
) -> torch.Tensor:
    """The action-consistency filter on pairs (method facts C.15 to C.17).

    Args:
        source_actions, target_actions: parsed actions of the turns, the teacher's and the student's; a blank one is
            invalid and never accepted.
        similarity: ``(P,)`` cosine of the pair's action embeddings; accepted from ``threshold`` on, if finite.
        rule: ``"cosine"``, or ``"webshop"``: also the same operation, and for clicks the same target with case.
        source, target: ``(P,)`` int64, which of the actions each pair compares. Default: pair p compares action p.

    Returns:
        ``(P,)`` bool.

    Raises:
        ValueError: for an unknown rule.
    """
    if rule not in ("cosine", "webshop"):
        raise ValueError(f"action_filter={rule!r} is no rule; choose 'cosine', 'webshop' or 'none'")
    source = torch.arange(len(source_actions)) if source is None else source
    target = torch.arange(len(target_actions)) if target is None else target
    codes: dict[tuple[str, str], int] = {}
    left = _action_codes(source_actions, rule, codes).to(similarity.device)[source.to(similarity.device)]
    right = _action_codes(target_actions, rule, codes).to(similarity.device)[target.to(similarity.device)]
    return similarity.isfinite() & (similarity >= threshold) & (left == right) & (left >= 0)


def _action_codes(actions: Sequence[str], rule: str, codes: dict[tuple[str, str], int]) -> torch.Tensor:
    """A number per action such that equal numbers are compatible actions; -1 for an action nothing matches."""
    keys = [_action_key(action, rule) for action in actions]
    return torch.tensor([-1 if key is None else codes.setdefault(key, len(codes)) for key in keys], dtype=torch.int64)


def _action_key(action: str, rule: str) -> tuple[str, str] | None:
    if not action.strip():
        return None
    if rule == "cosine":
        return "any", ""
    found = _WEBSHOP_ACTION.fullmatch(action.strip())
    if found is None or not found[2].strip():
        return None
    return (found[1], found[2].strip()) if found[1] == "click" else (found[1], "")
