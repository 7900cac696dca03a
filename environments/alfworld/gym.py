"""The Gymnasium interface: ``gymnasium.make("alignopsd_trl.environments.alfworld:ALFWorld-v0")``."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium.spaces import Text

MAX_OBSERVATION, MAX_ACTION = 1 << 14, 1 << 10  # characters


class ALFWorldGym(gymnasium.Env[str, str]):
    """One player of a split's games.

    `reset` draws a game from the environment's own generator, or takes ``options={"index": i}``. A won game terminates,
    the step limit truncates. ``info`` holds ``task``, ``game_id``, ``category``, ``admissible_commands``, ``won`` and
    ``score``. The reward of a step is 1 when it wins, else 0.

    Args:
        split: ``train``, ``valid_seen`` or ``valid_unseen``.
        max_turns: commands until an episode is truncated.
        options: of `alignopsd_trl.environments.alfworld.suite`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, split: str = "train", max_turns: int = 50, render_mode: str | None = None, **options: Any):
        from alignopsd_trl.environments.alfworld import suite as make_suite

        suite = make_suite(max_turns=max_turns, **options)
        self._rows = list(suite.panel(split))
        self._environment = suite.factory()
        self._max_turns, self._observation = self._environment.max_turns, ""
        self.render_mode = render_mode
        self.observation_space = Text(MAX_OBSERVATION, min_length=0, charset=string.printable)
        self.action_space = Text(MAX_ACTION, min_length=0, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self._rows)))
        row = self._rows[int((options or {}).get("index", drawn))]
        self._opening, self._steps = self._environment.reset(**row), 0
        self._observation = self._opening.observation
        return self._observation, self._info(row["task_id"], False, 0.0, self._opening.admissible)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        answer = self._environment.step(action)
        self._observation, self._steps = answer.observation, self._steps + 1
        truncated = not answer.done and self._steps >= self._max_turns
        info = self._info(answer.info["game_id"], answer.won, answer.score, answer.admissible)
        return answer.observation, answer.score, answer.done, truncated, info

    def render(self) -> str:
        return self._observation

    def close(self) -> None:
        self._environment.close()

    def _info(self, game_id: str, won: bool | None, score: float, admissible: tuple[str, ...]) -> dict[str, Any]:
        return {
            "task": self._opening.task_text,
            "game_id": game_id,
            "category": self._opening.category,
            "admissible_commands": admissible,
            "won": won,
            "score": score,
        }
