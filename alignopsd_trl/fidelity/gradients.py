"""What an update by some credit would do to the policy, against an update by A_MC.

The gradient of a method is that of its whole loss at the rollout snapshot: credit on log-probs, plus its auxiliary
loss. It is compared across tasks (one half of the tasks against the other half), so that the noise which both
gradients of a batch share does not look like agreement; the ceiling is A_MC's own gradient of one half against the
other half's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from alignopsd_trl.fidelity.intervals import Interval, stretched
from alignopsd_trl.methods import Credit, Method
from alignopsd_trl.policy.scoring import Padded
from alignopsd_trl.turns import TurnBatch

KEPT = 1 << 20  # numbers of a gradient that are kept: more are folded, with random signs, onto these
SPLITS = 64
LEAST_TASKS = 4  # two a half

Logits = Callable[[Padded, Padded], torch.Tensor]
"""Prompts and responses to the logits ``(rows, T, V)`` that predict the responses, with gradient."""


@dataclass(frozen=True)
class Loss:
    """What a method would minimise on a batch: its credit, and its auxiliary loss if it has one."""

    credit: Credit
    method: Method | None = None
    step: int = 0

    def __call__(self, rows: torch.Tensor, log_probs: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        width = log_probs.size(1)
        advantages = self.credit.advantages[rows, :width]
        if self.method is None:
            return -(advantages * log_probs)
        weight = self.method.coefficients(self.step)
        loss = -weight.policy * advantages * log_probs
        if weight.auxiliary and self.credit.targets:
            targets = {name: column[rows, :width] for name, column in self.credit.targets.items()}
            if "vocabulary_ids" in targets:
                targets["vocabulary"] = logits.gather(-1, targets["vocabulary_ids"]).float()
            loss = loss + weight.auxiliary * self.method.auxiliary(targets, log_probs, log_probs.detach())
        return loss


def task_gradients(
    model: torch.nn.Module,
    logits: Logits,
    batch: TurnBatch,
    losses: Mapping[str, Loss],
    *,
    pad_id: int,
    temperature: float,
    rows_per_forward: int = 32,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, torch.Tensor]:
    """The gradient of each task's summed loss, ``(tasks, D)`` float32 on the CPU for each label."""
    from alignopsd_trl.policy.ragged import Ragged

    parameters = [one for one in model.parameters() if one.requires_grad]
    fold = _Fold(parameters)
    prompts = Ragged.of([turn.prompt_ids for turn in batch.turns])
    responses = Ragged.of([turn.response_ids for turn in batch.turns])
    tasks = batch.task.unique().tolist()
    found = {label: torch.zeros(len(tasks), fold.width) for label in losses}
    for place, task in enumerate(tasks):
        for rows in (batch.task.cpu() == task).nonzero().squeeze(-1).split(rows_per_forward):
            answer = Padded.of(responses, rows, pad_id, "right", batch.task.device)
            values = logits(Padded.of(prompts, rows, pad_id, "left", batch.task.device), answer)
            scaled = values.float() / temperature
            log_probs = scaled.gather(-1, answer.ids.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
            mask = batch.policy_mask[rows.to(batch.task.device), : log_probs.size(1)]
            for number, (label, loss) in enumerate(losses.items()):
                total = (loss(rows.to(batch.task.device), log_probs, values) * mask).sum()
                gradient = torch.autograd.grad(
                    total, parameters, retain_graph=number < len(losses) - 1, allow_unused=True
                )
                found[label][place] += fold(gradient)
        progress(1)
    return found


class _Fold:
    """Gradients as vectors of at most `KEPT` numbers; inner products are kept up to about one in a thousand."""

    def __init__(self, parameters: Sequence[torch.Tensor]):
        self._sizes = [one.numel() for one in parameters]
        self.width = min(sum(self._sizes), KEPT)

    def __call__(self, gradient: Sequence[torch.Tensor | None]) -> torch.Tensor:
        if sum(self._sizes) <= KEPT:
            parts = [
                torch.zeros(size) if one is None else one.detach().float().flatten().cpu()
                for one, size in zip(gradient, self._sizes, strict=True)
            ]
            return torch.cat(parts)
        result = torch.zeros(self.width)
        for number, (one, size) in enumerate(zip(gradient, self._sizes, strict=True)):
            if one is not None:
                result += self._folded(one.detach().float().flatten().cpu(), size, number)
        return result

    def _folded(self, values: torch.Tensor, size: int, number: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(number)
        signs = torch.randint(0, 2, (size,), generator=draw, dtype=torch.int8) * 2 - 1
        padded = torch.nn.functional.pad(values * signs, (0, -size % self.width))
        shift = int(torch.randint(0, self.width, (1,), generator=draw))
        return padded.view(-1, self.width).sum(0).roll(shift)


def cosines(gradients: Mapping[str, torch.Tensor], truth: str, seed: int = 0) -> dict[str, Interval]:
    """For each label the cosine of its gradient on half of the tasks with that of ``truth`` on the other half, the mean
    over `SPLITS` splits; the row ``truth`` is the ceiling. Intervals: jackknife over tasks. All NaN where ``truth`` has
    a gradient on fewer than four tasks.

    Returns:
        Label -> interval, and ``label - grpo`` for the paired differences where ``grpo`` is there.
    """
    tasks = int((gradients[truth] != 0).any(1).sum())
    if tasks < LEAST_TASKS:
        return {label: Interval(np.nan) for label in gradients}
    with_truth = {label: (one @ gradients[truth].T).double().numpy() for label, one in gradients.items()}
    own = {label: (one @ one.T).double().numpy() for label, one in gradients.items()}
    everyone = np.arange(len(gradients[truth]))
    kept = [everyone] + [np.delete(everyone, task) for task in everyone]
    values = {
        label: np.array([_split_cosine(with_truth[label], own[label], own[truth], chosen, seed) for chosen in kept])
        for label in gradients
    }
    if "grpo" in values:
        values |= {f"{label} - grpo": one - values["grpo"] for label, one in values.items() if label != "grpo"}
    return {label: _jackknife(one, tasks) for label, one in values.items()}


def _split_cosine(cross: np.ndarray, own: np.ndarray, truth: np.ndarray, tasks: np.ndarray, seed: int) -> float:
    generator, found = np.random.default_rng(seed), []
    for _ in range(SPLITS):
        order = generator.permutation(tasks)
        for left, right in ((order[: len(order) // 2], order[len(order) // 2 :]),):
            for one, other in ((left, right), (right, left)):
                length = own[np.ix_(one, one)].sum() * truth[np.ix_(other, other)].sum()
                found.append(cross[np.ix_(one, other)].sum() / np.sqrt(length) if length > 0 else np.nan)
    return float(np.nanmean(found)) if np.isfinite(found).any() else np.nan


def _jackknife(values: np.ndarray, tasks: int) -> Interval:
    """The first is of all tasks, the others leave one out.

    Args:
        tasks: that have a part in the figure.
    """
    value, left_out = values[0], values[1:]
    half = 1.96 * np.sqrt((tasks - 1) / tasks * left_out.var() * (len(left_out) - 1))  # as a bootstrap would have it
    return stretched(value, value - half, value + half, tasks)
