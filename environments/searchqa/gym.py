"""The Gymnasium interface: ``gymnasium.make("alignopsd_trl.environments.searchqa:SearchQA-v0")``."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium.spaces import Text

MAX_OBSERVATION, MAX_ACTION = 1 << 14, 1 << 12  # characters
_LETTERS = string.printable + "".join(map(chr, range(0xA0, 0x250)))


class SearchQAGym(gymnasium.Env[str, str]):
    """One player of a panel's questions.

    Actions are ``<search>query</search>`` or ``<answer>text</answer>``; other strings are turns without an action.
    `reset` draws a question from the environment's own generator, or takes ``options={"index": i}``. An answer
    terminates, the turn limit truncates. ``info`` holds ``task_id``, ``data_source``, ``won`` and ``score``.

    Args:
        panel: ``train``, ``test``, or one data source as in ``test/hotpotqa``.
        options: of `alignopsd_trl.environments.searchqa.suite`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, panel: str = "train", render_mode: str | None = None, **options: Any):
        from alignopsd_trl.environments.searchqa import suite

        game = suite(**options)
        self.render_mode = render_mode
        self.observation_space = Text(MAX_OBSERVATION, min_length=0, charset=_LETTERS)
        self.action_space = Text(MAX_ACTION, min_length=0, charset=_LETTERS)
        self._rows = game.panel(panel).rows
        self._factory: Any = game.factory
        self._episode = game.factory()
        self._observation = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self._rows)))
        self._row = self._rows[int((options or {}).get("index", drawn))]
        self._observation, self._steps = self._episode.reset(**self._row).observation, 0
        return self._observation, self._info(False, 0.0)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        step = self._episode.step(action)
        self._observation, self._steps = step.observation, self._steps + 1
        truncated = not step.done and self._steps >= self._episode.max_turns
        return step.observation, step.reward, step.done, truncated, self._info(step.won, step.score)

    def render(self) -> str:
        return self._observation

    def close(self) -> None:
        self._factory.close()

    def _info(self, won: bool | None, score: float) -> dict[str, Any]:
        names = ("task_id", "data_source")
        return {**{name: self._row[name] for name in names}, "won": won, "score": score}
