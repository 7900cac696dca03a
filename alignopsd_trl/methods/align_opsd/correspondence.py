"""Decision-state correspondence: which sibling turns face the same decision as a target turn.

    decision states ──► per task: H ──► eligible ──► Psi (select_sources) ──► action filter

`correspond` runs these steps for a batch. All of them are per task, with the task's m rows in canonical order. Only
siblings are compared, and a tie goes to the smaller row, which has the smaller identity. Matrices are
``[source, target]``. The module works on tensors and texts, without a model or an environment.

Sources: the paper's section "Decision-Aligned Supervision Rectification"; method facts A.4, A.5 and C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.environments.shipped import ACTION_GRAMMARS
from alignopsd_trl.turns import NO_THOUGHT, Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions


# Decision states


@dataclass(frozen=True)
class DecisionStates:
    """Reasoning traces and actions of the privileged view and of the policy at M turns, with their embeddings.

    Args:
        teacher, student: the traces and actions of the M turns.
        table: ``(n, D)`` float32 embeddings, one row for each distinct text that is not empty.
        columns: tensors ``(M,)`` int64 that give the row of ``table`` of each turn, -1 for an empty text: first for the
            teacher's traces, then for the student's and, if the action filter needs them, for the actions of both.
    """

    teacher: list[Thought]
    student: list[Thought]
    table: torch.Tensor
    columns: list[torch.Tensor]

    def thinking(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """d+ and d of some turns, ``(len(rows), D)`` each; zero rows where there is no trace."""
        return self._at(self.columns[0][rows]), self._at(self.columns[1][rows])

    def action_cosine(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """``(P,)`` cosine of the teacher's action at turn ``source[p]`` with the student's at ``target[p]``. A task has
        few distinct actions, so that all distinct pairs cost less than one product a pair."""
        theirs, source = self.columns[2][source].unique(return_inverse=True)
        ours, target = self.columns[3][target].unique(return_inverse=True)
        return cosine(self._at(theirs), self._at(ours))[source, target]

    def _at(self, index: torch.Tensor) -> torch.Tensor:
        found = self.table[index.clamp_min(0)] if len(self.table) else self.table.new_zeros(len(index), 1)
        return found.masked_fill_((index < 0)[:, None], 0.0)


def decision_states(
    teacher: list[Thought],
    student: list[Thought],
    encode: Callable[[Sequence[str]], torch.Tensor],
    actions: bool,
    device: torch.device,
) -> DecisionStates:
    """Embeds the reasoning traces of both sides. Each distinct text is encoded once, an empty one not at all.

    Args:
        teacher, student: M traces and actions each.
        encode: n texts -> ``(n, D)``.
        actions: whether the actions are embedded too.
        device: of the result.
    """
    columns = [[thought.thinking for thought in side] for side in (teacher, student)]
    columns += [[thought.action for thought in side] for side in (teacher, student)] if actions else []
    texts = list(dict.fromkeys(text for column in columns for text in column if text))
    table = encode(texts).to(device=device, dtype=torch.float32)
    place = {text: number for number, text in enumerate(texts)}
    index = [torch.tensor([place.get(text, -1) for text in column], device=device).long() for column in columns]
    return DecisionStates(teacher, student, table, index)


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
        batch: the M turns.
        encode: n texts -> ``(n, D)``.
        options: for gamma_H, K and the action filter.
        match: `False` computes H alone.
    """
    groups = batch.groups
    asked = (compared if batch.taught is None else compared & batch.taught).tolist()
    student = [turn.thought if one else NO_THOUGHT for turn, one in zip(batch.turns, asked, strict=True)]
    states = decision_states(thoughts, student, encode, match and options.action_filter != "none", batch.task.device)
    tasks = [_task_similarity(states, rows, groups.rollout[rows]) for rows in groups.by_task if compared[rows[0]]]
    sources = torch.full((len(batch), options.max_sources if match else 0), -1, device=batch.task.device)
    similarity, rejected = torch.zeros_like(sources, dtype=torch.float32), 0
    for task in tasks if match else []:
        chosen = select_sources(
            task.similarity, task.eligible, task.rollout, options.similarity_threshold, options.max_sources
        )
        kept = chosen if options.action_filter == "none" else _consistent(chosen, task.rows, states, options)
        rejected += int((chosen >= 0).sum() - (kept >= 0).sum())
        sources[task.rows] = torch.where(kept >= 0, task.rows[kept], -1)
        similarity[task.rows] = task.similarity.gather(0, kept.clamp_min(0).T).T
    return Correspondence(thoughts, compared, tasks, sources, similarity, rejected)


def _task_similarity(states: DecisionStates, rows: torch.Tensor, rollout: torch.Tensor) -> TaskSimilarity:
    theirs, ours = (column[rows] >= 0 for column in states.columns[:2])
    return TaskSimilarity(rows, rollout, cosine(*states.thinking(rows)), eligibility(rollout, theirs, ours))


def _consistent(
    chosen: torch.Tensor, rows: torch.Tensor, states: DecisionStates, options: AlignOPSDOptions
) -> torch.Tensor:
    """Filters sources by their actions. A rejected source leaves -1 and is not replaced."""
    target, slot = (chosen >= 0).nonzero(as_tuple=True)
    source, place = chosen[target, slot], rows.tolist()
    kept = accept_actions(
        [states.teacher[row].action for row in place],
        [states.student[row].action for row in place],
        states.action_cosine(rows[source], rows[target]),
        options.action_threshold,
        options.action_filter,
        source,
        target,
    )
    return chosen.index_put((target, slot), torch.where(kept, source, -1))


# Formulas


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


def eligibility(rollout: torch.Tensor, teacher_valid: torch.Tensor, student_valid: torch.Tensor) -> torch.Tensor:
    """Computes which turns of one task may be matched at all (method facts C.13): turns of different rollouts whose
    traces parsed. A task has one data source, so the paper's condition on data sources always holds.

    Args:
        rollout: ``(m,)`` integers.
        teacher_valid, student_valid: ``(m,)`` bool, whether the trace parsed. A source needs its teacher's trace, a
            target its student's; the student's trace at the source does not matter.

    Returns:
        ``(m, m)`` bool.
    """
    eligible = rollout[:, None] != rollout[None, :]
    return eligible & teacher_valid.bool()[:, None] & student_valid.bool()[None, :]


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
    rule: str,
    source: torch.Tensor,
    target: torch.Tensor,
) -> torch.Tensor:
    """The action-consistency filter on pairs (method facts C.15 to C.17).

    Args:
        source_actions, target_actions: parsed actions of the turns, the teacher's and the student's; a blank one is
            invalid and never accepted.
        similarity: ``(P,)`` cosine of the pair's action embeddings; accepted from ``threshold`` on, if finite.
        rule: ``"cosine"``, or a benchmark's name: also compatible by its action grammar. WebShop's compares the
            operation, and for clicks the target with case.
        source, target: ``(P,)`` int64, which of the actions each pair compares.

    Returns:
        ``(P,)`` bool.
    """
    codes: dict[tuple[str, str], int] = {}
    left = _action_codes(source_actions, rule, codes).to(similarity.device)[source]
    right = _action_codes(target_actions, rule, codes).to(similarity.device)[target]
    return similarity.isfinite() & (similarity >= threshold) & (left == right) & (left >= 0)


def _action_codes(actions: Sequence[str], rule: str, codes: dict[tuple[str, str], int]) -> torch.Tensor:
    """Numbers the actions so that compatible actions have equal numbers; -1 for an action that matches none."""
    keys = [_action_key(action, rule) for action in actions]
    return torch.tensor([-1 if key is None else codes.setdefault(key, len(codes)) for key in keys], dtype=torch.int64)


def _action_key(action: str, rule: str) -> tuple[str, str] | None:
    if not action.strip():
        return None
    return ("any", "") if rule == "cosine" else ACTION_GRAMMARS[rule].key(action)
