"""One episode of an ALFWorld game at a time, as a `TextEnvironment`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.alfworld.categories import CATEGORY_OF, task_type_of
from environments.alfworld.engine import LOCK, Engine, Moment, make_engine
from environments.alfworld.games import read_game
from environments.alfworld.grammar import Grammar
from environments.alfworld.packages import logic_files, require
from environments.alfworld.pool import ProcessBatch
from environments.alfworld.prompt import AlfWorldPrompt, check_validity, project, task_text
from environments.base import Opening, Projection, Step, TextEnvironment


@dataclass(frozen=True)
class Settings:
    """What an environment and its worker processes need to know.

    Attributes:
        roots: split -> folder of the official layout that holds its games.
        engine: ``fast``, or ``plain`` for TextWorld's own text layer (the reference, several hundred times slower).
        max_steps: commands that the caller gives an episode at most, those that do nothing included.
        history_length: turns that a prompt shows at most.
        validity: ``authors`` or ``admissible``, see `environments.alfworld.prompt.project`.
        reward: of an episode that was won; every other has 0.
        template: of the prompt, ``paper`` or ``tiny``.
    """

    roots: Mapping[str, str] = field(default_factory=dict)
    engine: str = "fast"
    max_steps: int = 50
    history_length: int = 2
    validity: str = "authors"
    reward: float = 10.0
    template: str = "paper"

    def __post_init__(self) -> None:
        check_validity(self.validity)
        AlfWorldPrompt(self.template)
        if self.engine not in ("fast", "plain"):
            raise ValueError(f"engine={self.engine!r} is unknown; use 'fast' or 'plain'")
        if self.max_steps < 1 or self.history_length < 0:
            raise ValueError(
                f"max_steps={self.max_steps} must be at least 1 and history_length={self.history_length} at least 0"
            )


class AlfWorldEnvironment(TextEnvironment):
    """A game of a split (columns ``split`` and ``task_id``), or one given whole (column ``game``).

    The engine is made at the first `reset` and handed back by `close`. Calls are serialised over all environments of
    a process, for the engine is not safe in threads: use `Factory.batch` to play many games at once.
    """

    def __init__(self, settings: Settings | None = None):
        self.settings = settings or Settings()
        self.prompt = AlfWorldPrompt(self.settings.template)
        self.history_length = self.settings.history_length
        self.max_turns = self.settings.max_steps
        self._engine: Engine | None = None
        self._loaded: str | None = None
        self._last: Step | None = None

    def reset(self, **task: Any) -> Opening:
        """Starts a game; the first observation has the banner and the task in it.

        Raises:
            ValueError: on a row without ``task_id``, an unknown split, or a file that is not a game.
            FileNotFoundError: if there is no such game.
        """
        identity = task.get("task_id")
        if not isinstance(identity, str):
            raise ValueError(f"a task needs a task_id (str), not {identity!r}")
        kind = task_type_of(identity)
        with LOCK:
            moment = self._start(identity, task)
        text = task_text(moment.observation)
        self._facts = {"game_id": identity, "category": CATEGORY_OF[kind]}
        self._last = self._step_of(moment)
        return Opening(moment.observation, text, moment.admissible, CATEGORY_OF[kind], kind)

    def step(self, action: str) -> Step:
        """Executes any string; after a win, nothing happens any more."""
        if self._last is None or self._engine is None:
            raise RuntimeError("step before reset: call reset(**task) first")
        if not self._last.done:
            with LOCK:
                self._last = self._step_of(self._engine.step(action))
        return self._last

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        known = self._last.admissible if admissible is None and self._last is not None else admissible
        return project(response, self.settings.validity, known)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._loaded = self._last = None

    def _start(self, identity: str, task: Mapping[str, Any]) -> Moment:
        if self._engine is None:
            self._engine = make_engine(self.settings.engine)
        self._last = None
        try:
            game = task.get("game")
            key = None if game else f"{task.get('split')}/{identity}"
            if key is None or key != self._loaded:
                self._loaded = None
                self._engine.load(game or read_game(self._folder(task.get("split")) / identity))
                self._loaded = key
            return self._engine.reset()
        except Exception:
            self.close()  # an engine that failed half-way is not used again
            raise

    def _folder(self, split: Any) -> Path:
        if split not in self.settings.roots:
            raise ValueError(f"split {split!r} is unknown; this environment has {sorted(self.settings.roots)}")
        return Path(self.settings.roots[split])

    def _step_of(self, moment: Moment) -> Step:
        return Step(
            observation=moment.observation,
            reward=self.settings.reward * moment.won,
            done=moment.won,
            won=moment.won,
            score=float(moment.won),
            admissible=moment.admissible,
            info=self._facts | {"won": moment.won},
        )


@dataclass(frozen=True)
class Factory:
    """Makes environments one by one, or a pool of processes that plays many games (`environments.base.open_batch`
    asks for it). Can be pickled."""

    settings: Settings = field(default_factory=Settings)

    def __call__(self) -> AlfWorldEnvironment:
        return AlfWorldEnvironment(self.settings)

    def prepare(self) -> None:
        """Imports and parses what every game needs and makes an engine, so that a worker that can't says so when it
        starts."""
        Grammar(logic_files()[1])
        make_engine(self.settings.engine).close()

    def batch(self, size: int, time_limit: float = 60.0, workers: int | None = None) -> ProcessBatch:
        """A process pool for ``size`` games at once.

        Raises:
            MissingPackage: without the extra ``alfworld``.
        """
        require()
        return ProcessBatch(self, size, time_limit, workers)
