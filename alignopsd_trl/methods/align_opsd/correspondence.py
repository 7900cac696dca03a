"""Decision-state correspondence: which sibling turns face the same decision as a target turn.

    decision states ──► per task: H ──► eligible ──► Psi (select_sources) ──► action filter

`correspond` runs these steps for a batch. All of them are per task, with the task's m rows in canonical order. Only
siblings are compared, and a tie goes to the smaller row, which has the smaller identity. Matrices are
``[source, target]``. `match_scored` and `match_rest` have the teacher generate its traces.

Sources: the paper's section "Decision-Aligned Supervision Rectification"; method facts A.4, A.5 and C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.environments.shipped import ACTION_GRAMMARS
from alignopsd_trl.methods.base import Teacher
from alignopsd_trl.turns import NO_THOUGHT, Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions


# The batch


@dataclass(frozen=True)
class TaskSimilarity:
    """H of one task's m turns, and which of them may be sources of which.

    Args:
        rows: ``(m,)`` int64, the turns in canonical order.
        rollout: ``(m,)`` int64.
        similarity: ``(m, m)`` float32 H.
        eligible: ``(m, m)`` bool.
    """

    rows: torch.Tensor
    rollout: torch.Tensor
    similarity: torch.Tensor
    eligible: torch.Tensor


@dataclass(frozen=True)
class Correspondence:
    """Which sibling turns face the decision of each turn.

    Args:
        thoughts: M reasoning traces and actions of the privileged view, blank where none was generated.
        compared: ``(M,)`` bool, turns of the tasks whose traces were generated and compared.
        tasks: H of each of these tasks.
        sources: ``(M, K)`` int64 retained sources, best first, -1 for none; K = 0 where the config needs no match.
        similarity: ``(M, K)`` float32 H of those pairs.
        rejected: number of pairs that the action filter removed.
    """

    thoughts: list[Thought]
    compared: torch.Tensor
    tasks: list[TaskSimilarity]
    sources: torch.Tensor
    similarity: torch.Tensor
    rejected: int = 0

    @classmethod
    def empty(cls, batch: TurnBatch) -> Correspondence:
        """The correspondence of a config that reads neither matches nor profiles."""
        sources = batch.task.new_zeros(len(batch), 0)
        compared = torch.zeros_like(batch.task, dtype=torch.bool)
        return cls([NO_THOUGHT] * len(batch), compared, [], sources, sources.float())


def match_scored(batch: TurnBatch, teacher: Teacher, options: AlignOPSDOptions, match: bool) -> Correspondence:
    """Compares the groups that have a scored turn; all groups if `TurnBatch.scored` is `None`, or where a distribution
    mixes the views of all turns. Matches, profiles and shifts stay within a task's group, and the advantage 0 of
    another group multiplies whatever credit its turns get. ``match`` is that of `correspond`.
    """
    every = torch.ones_like(batch.task, dtype=torch.bool)
    if batch.scored is None:
        return correspond(teacher.thoughts(batch), every, batch, teacher.encode, options, match)
    mixed = match and options.auxiliary_loss == "distribution"
    compared = every if mixed else torch.isin(batch.task, batch.task[batch.scored])
    return correspond(_generate(batch, teacher, compared), compared, batch, teacher.encode, options, match)


def match_rest(
    batch: TurnBatch, teacher: Teacher, matches: Correspondence, options: AlignOPSDOptions
) -> Correspondence:
    """Adds H of all other groups, on which the batch threshold of the spans may depend. No action is generated for
    them, and their turns get no sources."""
    rest = ~matches.compared
    thoughts = _generate(batch, teacher, rest, actions=False)
    found = correspond(thoughts, rest, batch, teacher.encode, options, match=False)
    pairs = zip(matches.thoughts, thoughts, matches.compared.tolist(), strict=True)
    thoughts = [first if compared else later for first, later, compared in pairs]
    return replace(matches, thoughts=thoughts, compared=matches.compared | rest, tasks=[*matches.tasks, *found.tasks])


def _generate(batch: TurnBatch, teacher: Teacher, chosen: torch.Tensor, actions: bool = True) -> list[Thought]:
    """Generates traces at the chosen turns, in one call that every process makes; the result is blank elsewhere."""
    thoughts, rows = [NO_THOUGHT] * len(batch), chosen.nonzero().squeeze(1)
    for row, thought in zip(rows.tolist(), teacher.thoughts(batch, rows, actions), strict=True):
        thoughts[row] = thought
    return thoughts


def correspond(
    thoughts: list[Thought],
    compared: torch.Tensor,
    batch: TurnBatch,
    encode: Callable[[Sequence[str]], torch.Tensor],
    options: AlignOPSDOptions,
    match: bool = True,
) -> Correspondence:
    """Computes H of each task and, if ``match``, the sources of each turn by the operator Psi and the action filter.

    Args:
        thoughts: M reasoning traces and actions of the privileged view, blank at turns of other tasks.
        compared: ``(M,)`` bool, the turns of the tasks to compare.
        encode: n texts -> ``(n, D)``.
        options: for gamma_H, K and the action filter.
        match: `False` computes H alone.
    """
    groups, filtered = batch.groups, match and options.action_filter != "none"
    asked = (compared if batch.taught is None else compared & batch.taught).tolist()
    student = [turn.thought if one else NO_THOUGHT for turn, one in zip(batch.turns, asked, strict=True)]
    columns = [[thought.thinking for thought in side] for side in (thoughts, student)]
    columns += [[thought.action for thought in side] for side in (thoughts, student)] if filtered else []
    table, index = _embed(columns, encode, batch.task.device)
    tasks = []
    sources = torch.full((len(batch), options.max_sources if match else 0), -1, device=batch.task.device)
    similarity, rejected = torch.zeros_like(sources, dtype=torch.float32), 0
    for rows in (rows for rows in groups.by_task if compared[rows[0]]):
        at, rollout = index[:, rows], groups.rollout[rows]
        task = TaskSimilarity(rows, rollout, cosine(*table[at[:2]]), eligibility(rollout, *at[:2] >= 0))
        tasks.append(task)
        if not match:
            continue
        chosen = select_sources(
            task.similarity, task.eligible, rollout, options.similarity_threshold, options.max_sources
        )
        if filtered:
            target, slot = (chosen >= 0).nonzero(as_tuple=True)
            source = chosen[target, slot]
            actions = [[column[row] for row in rows.tolist()] for column in columns[2:]]
            near, rule = cosine(*table[at[2:]])[source, target], options.action_filter
            kept = accept_actions(*actions, near, options.action_threshold, rule, source, target)
            chosen[target, slot] = torch.where(kept, source, -1)  # a rejected source is not replaced
            rejected += int((~kept).sum())
        sources[rows] = torch.where(chosen >= 0, rows[chosen], -1)
        similarity[rows] = task.similarity.gather(0, chosen.clamp_min(0).T).T
    return Correspondence(thoughts, compared, tasks, sources, similarity, rejected)


def _embed(
    columns: list[list[str]], encode: Callable[[Sequence[str]], torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encodes each distinct text once, an empty one not at all. Returns embeddings, with a last row of zeros, and their
    row of each text, ``(columns, M)`` int64: -1 for an empty text."""
    texts = list(dict.fromkeys(text for column in columns for text in column if text))
    table = encode(texts).to(device=device, dtype=torch.float32)
    place = {text: number for number, text in enumerate(texts)}
    index = torch.tensor([[place.get(text, -1) for text in column] for column in columns], device=device)
    return torch.cat([table, table.new_zeros(1, table.size(1))]), index.long()


# Formulas


def cosine(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Correspondence matrix H, ``(S, T)`` float32 in [-1, 1] (the paper's equation of the decision-alignment operator;
    method facts C.12).

    Args:
        source: ``(S, D)`` embeddings of the teacher's thinking, of any length; zero rows where it is invalid.
        target: ``(T, D)`` of the student's.
    """
    source, target = (torch.nn.functional.normalize(rows.detach().float(), dim=-1) for rows in (source, target))
    return (source @ target.T).clamp(-1.0, 1.0)


def eligibility(rollout: torch.Tensor, teacher_valid: torch.Tensor, student_valid: torch.Tensor) -> torch.Tensor:
    """Computes which turns of one task may be matched at all, ``(m, m)`` bool (method facts C.13): turns of different
    rollouts whose traces parsed. A task has one data source, so the paper's condition on data sources always holds.

    Args:
        rollout: ``(m,)`` integers.
        teacher_valid, student_valid: ``(m,)`` bool, whether the trace parsed. A source needs its teacher's trace, a
            target its student's; the student's trace at the source does not matter.
    """
    eligible = rollout[:, None] != rollout[None, :]
    return eligible & teacher_valid.bool()[:, None] & student_valid.bool()[None, :]


def select_sources(
    similarity: torch.Tensor, eligible: torch.Tensor, rollout: torch.Tensor, threshold: float, top_k: int
) -> torch.Tensor:
    """The operator Psi: threshold, best turn of each sibling, best K siblings (method facts C.14).

    Returns the rows of the retained sources of each target, ``(m, K)`` int64, best first, ties to the smaller identity,
    -1 where there is none.

    Args:
        similarity: ``(m, m)`` H of one task group in canonical order.
        eligible: ``(m, m)`` bool.
        rollout: ``(m,)`` integers, each rollout's rows adjacent.
        threshold: gamma_H, inclusive, compared in the precision of H.
        top_k: K.
    """
    similarity = similarity.detach()
    candidate = eligible.bool() & (similarity >= threshold)
    score = similarity.masked_fill(~candidate, -torch.inf)
    number, length = torch.unique_consecutive(rollout, return_inverse=True, return_counts=True)[1:]
    start = length.cumsum(0) - length
    padded = score.new_full((len(length), int(length.max()), score.shape[1]), -torch.inf)
    padded[number, torch.arange(len(rollout), device=rollout.device) - start[number]] = score
    best, at = padded.max(dim=1)  # (G, m): of each rollout for each target, at the first row that has it
    row = at + start[:, None]
    order = best.argsort(dim=0, descending=True, stable=True)[:top_k]
    chosen = torch.where(best.gather(0, order) > -torch.inf, row.gather(0, order), -1).T
    return torch.nn.functional.pad(chosen, (0, top_k - chosen.shape[1]), value=-1)


def accept_actions(
    source_actions: Sequence[str],
    target_actions: Sequence[str],
    similarity: torch.Tensor,
    threshold: float,
    rule: str,
    source: torch.Tensor,
    target: torch.Tensor,
) -> torch.Tensor:
    """The action-consistency filter on pairs, ``(P,)`` bool (method facts C.15 to C.17).

    Args:
        source_actions, target_actions: parsed actions of the turns, the teacher's and the student's; a blank one is
            invalid and never accepted.
        similarity: ``(P,)`` cosine of the pair's action embeddings; accepted from ``threshold`` on, if finite.
        rule: ``"cosine"``, or a benchmark's name: also compatible by its action grammar. WebShop's compares the
            operation, and for clicks the target with case.
        source, target: ``(P,)`` int64, which of the actions each pair compares.
    """
    theirs, ours = ([_action_key(action, rule) for action in side] for side in (source_actions, target_actions))
    pairs = zip(source.tolist(), target.tolist(), strict=True)
    same = [theirs[left] is not None and theirs[left] == ours[right] for left, right in pairs]
    compatible = torch.tensor(same, dtype=torch.bool, device=similarity.device)
    return similarity.isfinite() & (similarity >= threshold) & compatible


def _action_key(action: str, rule: str) -> tuple[str, str] | None:
    """Equal for compatible actions; `None` for an action that matches none."""
    if not action.strip():
        return None
    return ("any", "") if rule == "cosine" else ACTION_GRAMMARS[rule].key(action)
