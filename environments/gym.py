"""The Gymnasium interface of ALFWorld and Search-QA, a task at a time."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from alignopsd_trl.environments.base import Opening, Step
from alignopsd_trl.environments.loading import load

MAX_OBSERVATION = 1 << 14  # characters


class PanelGym(gymnasium.Env[str, str]):
    """One player of a panel's tasks.

    `reset` draws a task from the environment's own generator, or takes ``options={"index": i}``. What ends by itself
    terminates, the turn limit truncates. The reward of a step is its score. ``info`` holds ``won``, ``score`` and the
    facts that a subclass names.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, name: str, panel: str, render_mode: str | None, options: dict[str, Any]):
        suite = load(name, **options)
        self._rows, self._environment = suite.panel(panel).rows, suite.factory()
        self._close = getattr(suite.factory, "close", self._environment.close)
        self.render_mode, self._observation = render_mode, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self._rows)))
        self._row = self._rows[int((options or {}).get("index", drawn))]
        self._opening, self._steps = self._environment.reset(**self._row), 0
        return self._told(self._opening, False, 0.0)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        step = self._environment.step(action)
        self._steps += 1
        truncated = not step.done and self._steps >= self._environment.max_turns
        observation, info = self._told(step, step.won, step.score)
        return observation, step.score, step.done, truncated, info

    def render(self) -> str:
        return self._observation

    def close(self) -> None:
        self._close()

    def _told(self, seen: Opening | Step, won: bool | None, score: float) -> tuple[str, dict[str, Any]]:
        self._observation = seen.observation
        return seen.observation, {**self._facts(seen), "won": won, "score": score}

    def _facts(self, seen: Opening | Step) -> dict[str, Any]:
        raise NotImplementedError


class ALFWorldGym(PanelGym):
    """One player of a split's games, as ``gymnasium.make("alignopsd_trl.environments.alfworld:ALFWorld-v0")`` makes it.
    ``info`` also holds ``task``, ``game_id``, ``category`` and ``admissible_commands``.

    Args:
        split: ``train``, ``valid_seen`` or ``valid_unseen``.
        options: of `alignopsd_trl.environments.alfworld.suite`, such as ``max_turns``.
    """

    def __init__(self, split: str = "train", render_mode: str | None = None, **options: Any):
        super().__init__("alfworld", split, render_mode, options)
        self.observation_space = Text(MAX_OBSERVATION, min_length=0, charset=string.printable)
        self.action_space = Text(1 << 10, min_length=0, charset=string.printable)

    def _facts(self, seen: Opening | Step) -> dict[str, Any]:
        task = {"task": self._opening.task_text, "game_id": self._row["task_id"], "category": self._opening.category}
        return {**task, "admissible_commands": seen.admissible}


class SearchQAGym(PanelGym):
    """One player of a panel's questions, as ``gymnasium.make("alignopsd_trl.environments.searchqa:SearchQA-v0")`` makes
    it. Actions are ``<search>query</search>`` or ``<answer>text</answer>``; other strings are turns without an action.
    ``info`` also holds ``task_id`` and ``data_source``.

    Args:
        panel: ``train``, ``test``, or one data source as in ``test/hotpotqa``.
        options: of `alignopsd_trl.environments.searchqa.suite`.
    """

    def __init__(self, panel: str = "train", render_mode: str | None = None, **options: Any):
        super().__init__("searchqa", panel, render_mode, options)
        letters = string.printable + "".join(map(chr, range(0xA0, 0x250)))
        self.observation_space = Text(MAX_OBSERVATION, min_length=0, charset=letters)
        self.action_space = Text(1 << 12, min_length=0, charset=letters)

    def _facts(self, seen: Opening | Step) -> dict[str, Any]:
        return {name: self._row[name] for name in ("task_id", "data_source")}
