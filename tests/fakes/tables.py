"""Batches of turns, and a teacher that answers from tables: what a method is given, without a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from method_vectors import identity_columns

from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
from alignopsd_trl.turns import Thought, Trajectory, Turn, TurnBatch

DEFAULTS: dict[str, Any] = dataclasses.asdict(AlignOPSDOptions()) | {
    "group_statistics": "trajectory",
    "scale_rewards": "group",
    "invalid_action_penalty": 0.0,
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

    def vocabulary(self, batch: TurnBatch, count: int, sources: Any = None, mix: Any = None) -> tuple[Any, Any]:
        self.calls.append("vocabulary")
        shape = (*batch.policy_mask.shape, count)
        return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        self.calls.append("gather")
        return torch.cat([values, torch.tensor(self._others, dtype=values.dtype)])


def scoring(scores: torch.Tensor | None = None) -> TableTeacher:
    """A teacher as the baselines use it: each turn's own view [turns, tokens] and nothing else."""

    def own_view(source: int, target: int) -> torch.Tensor:
        assert scores is not None and source == target, "a baseline scores each turn under its own view"
        return scores[target]

    return TableTeacher([], {}, own_view)


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


def small_world(
    seed: int = 0, turns: int = 6, width: int = 5, ties: bool = True, **changes: Any
) -> tuple[TurnBatch, TableTeacher]:
    """Two tasks, three siblings each. Turns 2n and 2n + 1 think alike in all siblings, word for word unless there shall
    be no ties."""
    draw = torch.Generator().manual_seed(seed)
    names = [[f"t{task}", f"r{rollout}", at] for task in range(2) for rollout in range(3) for at in range(turns)]
    own = ["" if ties else f" of {task} {rollout} {at}" for task, rollout, at in names]
    students = [Thought(f"state {name[2] // 2}{mark}", f"act {name[2]}") for name, mark in zip(names, own, strict=True)]
    teachers = [Thought(thought.thinking, thought.action) for thought in students]
    states = {f"state {at}": torch.randn(8, generator=draw) for at in range(turns)}
    vectors = {
        text: (states[" ".join(text.split()[:2])] + (0.0 if ties else 0.1) * torch.randn(8, generator=draw)).tolist()
        for text in sorted({t.thinking for t in students})
    }
    vectors |= {text: torch.randn(8, generator=draw).tolist() for text in sorted({t.action for t in students})}
    table = -torch.rand(len(names), len(names), width, generator=draw)
    mask = torch.rand(len(names), width, generator=draw) < 0.8
    mask[:, 0] = True
    reward = torch.tensor([float(rollout == "r0" or (task == "t1" and rollout == "r1")) for task, rollout, _ in names])
    student = -torch.rand(len(names), width, generator=draw)
    batch = batch_of(names, students, mask, reward, student)
    return batch, TableTeacher(teachers, vectors, lambda source, target: table[source, target], **changes)


def empty_world() -> tuple[TurnBatch, TableTeacher]:
    number = torch.zeros(0, dtype=torch.int64)
    batch = TurnBatch(
        [], number, number, number, torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, 1, dtype=torch.bool),
        torch.zeros(0), torch.zeros(0, dtype=torch.bool), torch.zeros(0, 1),
    )  # fmt: skip
    return batch, TableTeacher([], {}, None)


def play(lengths: dict[tuple[str, str], list[int]], rewards: list[float], observations: str = "") -> TurnBatch:
    """A batch of rollouts (task, rollout) -> tokens of each turn; letters of ``observations`` answer them in order."""
    answers = iter(observations)
    trajectories = []
    for (task, rollout), reward in zip(lengths, rewards, strict=True):
        turns = [
            Turn(
                number=number,
                prompt_text="",
                prompt_ids=[1],
                privileged_ids=[2, 1],
                response_ids=[3] * tokens,
                response_text="",
                thought=Thought("", ""),
                action="",
                action_valid=True,
                observation=next(answers, ""),
            )
            for number, tokens in enumerate(lengths[task, rollout])
        ]
        row = {"task_id": task}
        trajectories.append(Trajectory(task=task, rollout=rollout, row=row, turns=turns, reward=reward))
    return TurnBatch.of(trajectories, pad_id=0)


def random_batch(seed: int = 0) -> TurnBatch:
    """Two tasks, four and three rollouts, one to four turns of one to six tokens."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    names = [("a", f"r{n}") for n in range(4)] + [("b", f"r{n}") for n in range(3)]
    batch = play({name: [number(1, 6) for _ in range(number(1, 4))] for name in names}, [1, 0, 0, 1, 0.5, 0.2, 0.9])
    batch = replace(
        batch, student_log_probs=-torch.rand(batch.policy_mask.shape, generator=draw) * 3 * batch.policy_mask
    )
    return batch


SEEDS = range(5)


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rollouts(seed: int, count: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Rollout and span number of each turn of ``count`` rollouts of different lengths."""
    lengths = torch.randint(1, 12, (count,), generator=draw(seed))
    rollout = torch.arange(count).repeat_interleave(lengths)
    starts = torch.cat([torch.ones(1), (rollout[1:] != rollout[:-1]).float()])
    span = ((torch.rand(len(rollout), generator=draw(seed)) < 0.4) | (starts > 0)).cumsum(0) - 1
    return rollout, span
