"""An exact testbed: a policy whose probabilities are known, so that what a turn was worth is known without noise.

A scripted policy says of every view what it might respond and how likely that is, with a skill in its prompt and
without. All that can happen in a task is expanded and values follow by arithmetic; only the episodes that a method sees
are sampled. Responses are single tokens, so that a method's own code runs on them without a model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from alignopsd_trl.environments.base import Record, TextEnvironment, View
from alignopsd_trl.turns import StopReason, Thought, Trajectory, Turn, TurnBatch

LEAST = 1e-3  # probability of a response that a view's policy would never give


@dataclass(frozen=True)
class Choice:
    """One thing that the policy might respond.

    Args:
        probability, skilled (`float`):
            Without and with the skill.
        slope (`Mapping[str, float]`, *optional*, defaults to `{}`):
            Parameter -> derivative of log(probability).
    """

    thinking: str
    action: str
    probability: float
    skilled: float
    slope: Mapping[str, float] = field(default_factory=dict)


class Scripted(Protocol):
    def __call__(self, view: View) -> Sequence[Choice]:
        """All choices at a view; either column of probabilities sums to 1."""


@dataclass
class Node:
    """A state: its choices, what each leads to (another node, or the outcome), and its exact value."""

    view: View
    choices: Sequence[Choice]
    after: list[tuple[int | None, float, str]] = field(default_factory=list)  # node, value, observation
    value: float = 0.0


class Game:
    """A task, expanded.

    Args:
        environment: deterministic; it is played from the start for every state.
        row: of the dataset.
        state: what of the environment, beside the view, decides what happens next; equal ones are one node.
    """

    def __init__(
        self,
        environment: TextEnvironment,
        row: Mapping[str, Any],
        policy: Scripted,
        state: Callable[[TextEnvironment], Hashable],
    ):
        self.row, self._environment, self._policy, self._state = dict(row), environment, policy, state
        self.nodes: list[Node] = []
        self._places: dict[Hashable, int] = {}
        self.root = self._expand(())
        self.back_up()

    def _expand(self, path: tuple[str, ...]) -> int:
        view = self._replay(path)
        key = (self._state(self._environment), view)
        if key in self._places:
            return self._places[key]
        place = self._places[key] = len(self.nodes)
        node = Node(view, self._policy(view))
        self.nodes.append(node)
        for number, choice in enumerate(node.choices):
            if number:
                self._replay(path)
            step = self._environment.step(choice.action)
            if step.done or len(path) + 1 >= self._environment.max_turns:
                node.after.append((None, float(step.won), step.observation))
            else:
                node.after.append((self._expand((*path, choice.action)), 0.0, step.observation))
        return place

    def _replay(self, path: Sequence[str]) -> View:
        opening = self._environment.reset(**self.row, seed=0)
        observation, admissible, records = opening.observation, opening.admissible, []
        for number, action in enumerate(path, 1):
            step = self._environment.step(action)
            records.append(Record(number, observation, action, step.observation))
            observation, admissible = step.observation, step.admissible
        shown = tuple(records[-self._environment.history_length :])
        return View(opening.task_text, observation, tuple(admissible), shown, len(path))

    def under(self, policy: Scripted) -> Game:
        """The same expansion under another policy. It must offer the same actions in the same order at every view."""
        other = copy(self)
        other.nodes = [Node(node.view, policy(node.view), list(node.after)) for node in self.nodes]
        other.back_up()
        return other

    def back_up(self) -> None:
        """Values of all nodes from those of the outcomes."""
        for node in sorted(self.nodes, key=lambda one: one.view.step_count, reverse=True):
            node.after = [
                (child, value if child is None else self.nodes[child].value, said) for child, value, said in node.after
            ]
            pairs = zip(node.choices, node.after, strict=True)
            node.value = sum(choice.probability * value for choice, (_, value, _) in pairs)

    @property
    def longest(self) -> int:
        """Turns of an episode at most."""
        return 1 + max(node.view.step_count for node in self.nodes)

    @property
    def value(self) -> float:
        """Probability that the policy wins."""
        return self.nodes[self.root].value

    def gradient(self) -> dict[str, float]:
        """Exact derivative of `value` by the policy's parameters."""
        reached, total = {self.root: 1.0}, {}
        for place in sorted(range(len(self.nodes)), key=lambda one: self.nodes[one].view.step_count):
            node, weight = self.nodes[place], reached.get(place, 0.0)
            for choice, (child, value, _) in zip(node.choices, node.after, strict=True):
                for name, slope in choice.slope.items():
                    total[name] = total.get(name, 0.0) + weight * choice.probability * slope * (value - node.value)
                if child is not None:
                    reached[child] = reached.get(child, 0.0) + weight * choice.probability
        return total


class Trip(Game):
    """Games one after another, won if all are: long episodes of which every part stays small."""

    def __init__(self, games: Sequence[Game]):
        self.row = {"task_id": "+".join(str(game.row["task_id"]) for game in games)}
        self.nodes = []
        self._first: dict[tuple[int, bool], int] = {}
        self.root = self._copy(games, 0, True)
        self.back_up()

    def _copy(self, games: Sequence[Game], number: int, alive: bool) -> int:
        """The nodes of one game, behind games that were all won or not; the place of its root."""
        if (number, alive) in self._first:
            return self._first[number, alive]
        last, game = number + 1 == len(games), games[number]
        following = {} if last else {won: self._copy(games, number + 1, won and alive) for won in (True, False)}
        start, earlier = len(self.nodes), sum(one.longest for one in games[:number])
        for node in game.nodes:
            view = replace(node.view, step_count=node.view.step_count + earlier)
            after = [
                (start + child, 0.0, said)
                if child is not None
                else (None, float(alive and value == 1.0), said)
                if last
                else (following[value == 1.0], 0.0, said)
                for child, value, said in node.after
            ]
            self.nodes.append(Node(view, node.choices, after))
        self._first[number, alive] = start + game.root
        return start + game.root


@dataclass
class Sampled:
    """Episodes of the arena and where their turns were taken: id of a turn -> (game, node, choice)."""

    trajectories: list[Trajectory]
    place: dict[int, tuple[Game, int, int]]

    def advantages(self, turns: Sequence[Turn]) -> np.ndarray:
        """Exact ``(M,)`` V(next state) - V(state)."""
        found = [self.place[id(turn)] for turn in turns]
        return np.array([game.nodes[node].after[choice][1] - game.nodes[node].value for game, node, choice in found])

    def gradient(self, turns: Sequence[Turn], credit: np.ndarray) -> dict[str, float]:
        """The policy gradient that some credit gives: the sum over turns of credit times the slope of the choice."""
        total: dict[str, float] = {}
        for turn, one in zip(turns, credit, strict=True):
            game, node, choice = self.place[id(turn)]
            for name, slope in game.nodes[node].choices[choice].slope.items():
                total[name] = total.get(name, 0.0) + float(one) * slope
        return total


def sample_groups(games: Sequence[Game], siblings: int, draw: random.Random) -> Sampled:
    """So many episodes of every game."""
    sampled = Sampled([], {})
    for game in games:
        for sibling in range(siblings):
            task = str(game.row["task_id"])
            one = Trajectory(dict(game.row), task, f"{sibling:04d}")
            place: int | None = game.root
            while place is not None:
                place = _take(game, place, one, sampled.place, draw)
            one.stop = StopReason.DONE
            sampled.trajectories.append(one)
    return sampled


def _take(
    game: Game, place: int, one: Trajectory, places: dict[int, tuple[Game, int, int]], draw: random.Random
) -> int | None:
    node = game.nodes[place]
    choice = draw.choices(range(len(node.choices)), [each.probability for each in node.choices])[0]
    following, value, observation = node.after[choice]
    made = node.choices[choice]
    turn = Turn(
        number=len(one.turns),
        prompt_text=str(place),
        prompt_ids=[place],
        privileged_ids=[place],
        response_ids=[choice],
        response_text=made.action,
        thought=Thought(made.thinking, made.action),
        action=made.action,
        action_valid=True,
        observation=observation,
    )
    places[id(turn)] = (game, place, choice)
    one.turns.append(turn)
    if following is None:
        one.won, one.reward, one.score = value == 1.0, value, value
    return following


def make_batch(sampled: Sampled) -> TurnBatch:
    """The batch that a method is given, with the policy's own log-probs."""
    batch = TurnBatch.of(sampled.trajectories, 0)
    found = [sampled.place[id(turn)] for turn in batch.turns]
    chosen = [math.log(game.nodes[node].choices[choice].probability) for game, node, choice in found]
    batch = replace(batch, student_log_probs=torch.tensor(chosen, dtype=torch.float32)[:, None])
    return batch


class ExactTeacher:
    """The privileged view of a scripted policy, as a `Teacher`.

    Args:
        encode: texts to unit vectors.
    """

    def __init__(self, sampled: Sampled, encode: Callable[[Sequence[str]], torch.Tensor], draw: random.Random):
        self._sampled, self._encode, self._draw = sampled, encode, draw

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        scores = [self._log_prob(batch.turns[view], batch.turns[of]) for view, of in pairs]
        return torch.tensor(scores)[:, None]

    def _log_prob(self, view: Turn, of: Turn) -> float:
        game, node, _ = self._sampled.place[id(view)]
        found = [one.skilled for one in game.nodes[node].choices if one.action == of.action]
        return math.log(max(sum(found), LEAST))

    def thoughts(self, batch: TurnBatch, rows: torch.Tensor | None = None, actions: bool = True) -> list[Thought]:
        turns = batch.turns if rows is None else [batch.turns[row] for row in rows.tolist()]
        found = [self._thought(turn) for turn in turns]
        return found if actions else [replace(thought, action="") for thought in found]

    def _thought(self, turn: Turn) -> Thought:
        game, node, _ = self._sampled.place[id(turn)]
        choices = game.nodes[node].choices
        made = self._draw.choices(choices, [one.skilled for one in choices])[0]
        return Thought(made.thinking, made.action)

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        return self._encode(texts)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return values
