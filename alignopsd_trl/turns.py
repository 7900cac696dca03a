"""The data that flows from rollouts to the loss: turns, trajectories, and a batch of turns.

Shape letters, used in every module:

    M  turns of this process in canonical order (task, rollout, turn)
    L  response tokens, right-padded
    P  prompt tokens
    G  siblings, the rollouts of one task group
    D  width of an embedding

Matrices over turns are oriented ``[source, target]`` and kept per task group, never as one dense M x M.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import torch


class StopReason(str, Enum):  # noqa: UP042 (StrEnum needs Python 3.11)
    """The reason for a trajectory's end, also logged as one-hot metrics ``stop/<value>`` with underscores.

    Attributes:
        DONE: the environment ended the episode (`Step.done`), won or not.
        TURN_LIMIT: the episode reached its maximum of turns.
        ENVIRONMENT_ERROR: the environment raised, exceeded its time limit or returned an invalid value; see the
            trajectory's message. The episode counts as not won and is left out of the update.
        PROMPT_TOO_LONG: the next prompt does not fit ``max_prompt_length`` even without history.
    """

    DONE = "done"
    TURN_LIMIT = "turn limit"
    ENVIRONMENT_ERROR = "environment error"
    PROMPT_TOO_LONG = "prompt too long"


@dataclass(frozen=True)
class Thought:
    """Reasoning trace and action of one response; an empty text is not valid."""

    thinking: str
    action: str

    @property
    def thinking_valid(self) -> bool:
        return bool(self.thinking)

    @property
    def action_valid(self) -> bool:
        return bool(self.action)


NO_THOUGHT = Thought("", "")
"""The value for a response with neither reasoning trace nor action, and for a turn without a privileged trace."""


@dataclass
class Turn:
    """One response of the policy and its prompt.

    ``prompt_ids`` and ``response_ids`` are the tokens of the model's input and output, never decoded and encoded again.
    ``privileged_ids`` is the same prompt with the skill in its slot, rendered from the same cut history. In a
    conversation ``prompt_text`` is the turn's addition to the dialogue.
    """

    number: int
    prompt_text: str
    prompt_ids: list[int]
    privileged_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    response_text: str = ""
    thought: Thought = NO_THOUGHT
    action: str = ""  # the action that the environment executed
    action_valid: bool = False  # the environment's verdict on the format
    observation: str = ""  # the environment's answer
    reward: float = 0.0  # the environment's own reward of this turn; see `Trajectory.turn_rewards`
    truncated: bool = False  # the response hit its token limit
    history_shortened: bool = False
    sampling_log_probs: list[float] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # numbers of the environment's step
    info: Mapping[str, Any] = field(default_factory=dict)  # `metrics` and the other facts of the step
    staleness: int = 0  # maximum of updates by which its sampler's weights lag behind the trained ones
    chosen_on: str = ""  # the observation before the response, of the reset or the previous turn
    milestone: str | None = None  # name of the sub-goal that the action reached
    privileged_text: str | None = None  # the teacher's own text here, "" for no view; None: `Trajectory.skill_text`
    shown: Any = field(default=None, compare=False, repr=False)  # what renders the prompt again beside such a text
    row: int | None = field(default=None, compare=False)  # its row in the last `TurnBatch` that holds it

    def extends(self, earlier: Turn) -> bool:
        """Returns whether the prompt continues the earlier turn's prompt and response with further tokens."""
        before, after = len(earlier.prompt_ids), len(earlier.prompt_ids) + len(earlier.response_ids)
        return (
            len(self.prompt_ids) > after
            and self.prompt_ids[before:after] == earlier.response_ids
            and self.prompt_ids[:before] == earlier.prompt_ids
        )


def continued(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Returns each turn that continues a conversation, behind the turn that it continues: the one before it, or what
    an agent's own requests say (``info["follows"]``)."""
    places = [turn.info.get("follows", place - 1) for place, turn in enumerate(turns)]
    return [(turns[at], turn) for at, turn in zip(places, turns, strict=True) if at is not None and at >= 0]


class Seeds(NamedTuple):
    """Seeds of an episode: all siblings of a task share ``seed``; each has its own ``dynamics_seed``."""

    seed: int
    dynamics_seed: int


@dataclass
class Trajectory:
    """One episode. ``won`` is verified success (`None`: unknown), ``score`` the environment's number, ``stop`` the
    reason for its end. ``reward`` is the sum of `turn_rewards`. ``row``, ``seeds`` and the turns' actions reproduce the
    episode."""

    row: dict[str, Any]
    task: str  # identity of the sibling group
    rollout: str  # identity inside the group
    seeds: Seeds = Seeds(0, 0)
    category: str = ""
    task_text: str = ""
    skill_text: str = ""
    skill_ids: tuple[str, ...] = ()
    privileged: bool = False  # whether the teacher played it, with the skill in its prompts
    turns: list[Turn] = field(default_factory=list, repr=False)
    stop: StopReason | None = None
    message: str = ""  # text of an environment error or about a first prompt that is too long
    reward: float = 0.0
    won: bool | None = False
    score: float = 0.0
    lost: int | None = None  # number of turns after which the environment reported that it can't be won any more
    environment_weight: float = 1.0  # weight of the environment's own rewards in ``reward``

    @property
    def failed(self) -> bool:
        """Whether the environment failed. Such an episode is recorded, but left out of group statistics and update."""
        return self.stop is StopReason.ENVIRONMENT_ERROR

    @property
    def turn_rewards(self) -> list[float]:
        """The weighted environment reward of each turn. The last turn's also includes the reward functions' rewards,
        which are known at the end. The sum is ``reward`` unless the episode failed."""
        rewards = [self.environment_weight * turn.reward for turn in self.turns]
        if rewards and not self.failed:
            rewards[-1] += self.reward - math.fsum(rewards)
        return rewards


def number_rows(*keys: torch.Tensor) -> torch.Tensor:
    """Numbers the distinct rows of integer columns in sorted order, from 0 without holes; returns ``(M,)`` int64."""
    return torch.unique(torch.stack(keys), dim=1, return_inverse=True)[1]


@dataclass(frozen=True)
class Groups:
    """Groups of turns by task and by rollout, derived once from the turns' identities.

    Args:
        task: ``(M,)`` int64 task of each turn, numbered from 0 without holes.
        rollout: ``(M,)`` int64 rollout of each turn, numbered over all tasks in the order (task, rollout), without
            holes.
        position: ``(M,)`` int64 place of each turn in its rollout, from 0 without gaps, even if turn numbers have gaps.
        siblings: ``(M,)`` int64 number of rollouts in the task of each turn.
        by_task: rows of each task, in the order (rollout, turn).
        by_rollout: rows of each rollout, in the order of turns.
    """

    task: torch.Tensor
    rollout: torch.Tensor
    position: torch.Tensor
    siblings: torch.Tensor
    by_task: list[torch.Tensor]
    by_rollout: list[torch.Tensor]

    @property
    def tasks(self) -> int:
        return len(self.by_task)

    @property
    def rollouts(self) -> int:
        return len(self.by_rollout)

    @classmethod
    def of(cls, task: torch.Tensor, rollout: torch.Tensor, turn: torch.Tensor | None = None) -> Groups:
        """Groups rows, which may come in any order.

        Args:
            task, rollout: ``(M,)`` integers that rise with the identities' order.
            turn: ``(M,)`` integers; by default a rollout's rows come in the order of its turns.
        """
        rollout, task = number_rows(task, rollout), number_rows(task)
        order = torch.arange(len(task), device=task.device) if turn is None else turn.argsort(stable=True)
        order = order[rollout[order].argsort(stable=True)]
        lengths = torch.bincount(rollout)
        start = lengths.cumsum(0) - lengths
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order), device=order.device) - start[rollout[order]]
        return cls(
            task=task,
            rollout=rollout,
            position=position,
            siblings=torch.bincount(task[position == 0])[task],
            by_task=list(order.split(torch.bincount(task).tolist())),
            by_rollout=list(order.split(lengths.tolist())),
        )


@dataclass(frozen=True, eq=False, repr=False)
class TurnBatch:
    """M turns of whole sibling groups, in canonical order, with tensors of their data. It does not change once a method
    has it.

    Args:
        turns: the M turns.
        task, rollout, turn: ``(M,)`` int64 identities. Equal numbers mean equal identities and numbers rise with the
            identities' order (ids compared as strings), so sorting rows by (task, rollout, turn) leaves them as they
            are.
        response_ids: ``(M, L)`` int64.
        policy_mask: ``(M, L)`` bool, the optimised tokens.
        reward: ``(M,)`` float32, reward of the turn's episode: equal for all turns of a rollout.
        action_valid: ``(M,)`` bool, the environment's verdict on the format.
        student_log_probs: ``(M, L)`` float32 under the rollout snapshot and the ordinary prompt; `None` unless the
            method needs them.
        scored: ``(M,)`` bool, turns whose log-probs are computed; `None`: all. Other turns have log-probs 0, since
            their credit does not depend on them (`Method.weighs_outcome`).
        reference_log_probs: ``(M, L)`` float32 by the reference model; `None` where the loss has no such term.
        turn_advantages: ``(M,)`` float64 Monte Carlo advantages in units of the reward, NaN where they were not
            measured; `None` unless the method needs them.
        turn_reward: ``(M,)`` float64 reward of each turn: `Trajectory.turn_rewards`, which sum to ``reward``.
        privileged: ``(M,)`` bool, turns of episodes that the teacher played (`Trajectory.privileged`); `None`: none.
        won: ``(M,)`` bool, turns of won episodes.
        taught: ``(M,)`` bool, turns at which the teacher is asked (`Turn.privileged_text`); `None`: all. At other turns
            its log-probs are the policy's own, and no auxiliary loss counts.
    """

    turns: list[Turn]
    task: torch.Tensor
    rollout: torch.Tensor
    turn: torch.Tensor
    response_ids: torch.Tensor
    policy_mask: torch.Tensor
    reward: torch.Tensor
    action_valid: torch.Tensor
    student_log_probs: torch.Tensor | None = None
    scored: torch.Tensor | None = None
    reference_log_probs: torch.Tensor | None = None
    turn_advantages: torch.Tensor | None = None
    turn_reward: torch.Tensor | None = None
    privileged: torch.Tensor | None = None
    won: torch.Tensor | None = None
    taught: torch.Tensor | None = None

    @property
    def scored_mask(self) -> torch.Tensor:
        """The optimised tokens of the turns that are scored, ``(M, L)`` bool."""
        return self.policy_mask if self.scored is None else self.policy_mask & self.scored[:, None]

    def sampling_log_probs(self) -> torch.Tensor:
        """Returns the sampler's log-probs, ``(M, L)`` float32 on the batch's device: NaN where it gave none, 0 past a
        response's end."""
        kept = torch.zeros(self.policy_mask.shape)
        for row, turn in enumerate(self.turns):
            given = turn.sampling_log_probs or [None] * len(turn.response_ids)
            kept[row, : len(given)] = torch.tensor([math.nan if one is None else one for one in given])
        return kept.to(self.policy_mask.device)

    @cached_property
    def groups(self) -> Groups:
        """The groups of turns by task and by rollout."""
        return Groups.of(self.task, self.rollout, self.turn)

    def __len__(self) -> int:
        return len(self.turns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} turns, at most {self.policy_mask.shape[1]} response tokens)"

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], pad_id: int, device: torch.device | str = "cpu") -> TurnBatch:
        """Makes a batch of the turns of all trajectories except `Trajectory.failed` ones."""
        counted = sorted((t for t in trajectories if not t.failed and t.turns), key=lambda t: (t.task, t.rollout))
        tasks = {name: number for number, name in enumerate(dict.fromkeys(t.task for t in counted))}
        turns = [turn for one in counted for turn in one.turns]
        played = [one for one in counted for _ in one.turns]
        for row, turn in enumerate(turns):
            turn.row = row
        lengths = torch.tensor([len(turn.response_ids) for turn in turns], dtype=torch.int64)
        mask = torch.arange(int(lengths.max()) if turns else 1) < lengths[:, None]
        ids = torch.full(mask.shape, pad_id, dtype=torch.int64)
        ids[mask] = torch.tensor([token for turn in turns for token in turn.response_ids], dtype=torch.int64)

        def column(values: list[Any], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        own_texts = any(turn.privileged_text is not None for turn in turns)
        return cls(
            turns=turns,
            task=column([tasks[one.task] for one in played], torch.int64),
            rollout=column([number for number, one in enumerate(counted) for _ in one.turns], torch.int64),
            turn=column([turn.number for turn in turns], torch.int64),
            response_ids=ids.to(device),
            policy_mask=mask.to(device),
            reward=column([one.reward for one in played], torch.float32),
            action_valid=column([turn.action_valid for turn in turns], torch.bool),
            turn_reward=column([reward for one in counted for reward in one.turn_rewards], torch.float64),
            privileged=column([one.privileged for one in played], torch.bool),
            won=column([one.won is True for one in played], torch.bool),
            taught=column([turn.privileged_text != "" for turn in turns], torch.bool) if own_texts else None,
        )
