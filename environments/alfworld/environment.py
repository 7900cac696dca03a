"""ALFWorld's games as a `TextEnvironment`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.alfworld.engine.categories import CATEGORY_OF, task_type_of
from alignopsd_trl.environments.alfworld.engine.distance import MOST_NEEDED
from alignopsd_trl.environments.alfworld.engine.games import read_game
from alignopsd_trl.environments.alfworld.engine.grammar import Grammar
from alignopsd_trl.environments.alfworld.engine.packages import logic_files, require
from alignopsd_trl.environments.alfworld.engine.play import LOCK, Engine, Moment, make_engine
from alignopsd_trl.environments.alfworld.options import AlfWorldOptions
from alignopsd_trl.environments.alfworld.prompt import AlfWorldPrompt, project, task_text
from alignopsd_trl.environments.base import Opening, Projection, Step, TextEnvironment
from alignopsd_trl.environments.processes import ProcessBatch


class AlfWorldEnvironment(TextEnvironment):
    """Plays a game of a split (columns ``split`` and ``task_id``), or one given whole (column ``game``).

    Args:
        options: how it is played.
        roots: split -> folder of the official layout that holds its games.

    The engine is made at the first `reset` and released by `close`. Calls are serialised over all environments of a
    process, since the engine is not thread-safe: use `Factory.batch` to play many games at once.
    """

    concurrent = True  # behind `LOCK`

    def __init__(self, options: AlfWorldOptions | None = None, roots: Mapping[str, str] | None = None):
        self.options, self._roots = options or AlfWorldOptions(), dict(roots or {})
        self.prompt = AlfWorldPrompt(self.options.template)
        self.history_length, self.max_turns = self.options.history_length, self.options.max_turns
        self._engine: Engine | None = None
        self._loaded: str | None = None
        self._last: Step | None = None

    def reset(self, **task: Any) -> Opening:
        """Starts a game. The first observation contains the banner and the task.

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
        self._turns, self._reached = 0, set[str]()
        self._last = self._step_of(moment)
        return Opening(moment.observation, text, moment.admissible, CATEGORY_OF[kind], kind)

    def step(self, action: str) -> Step:
        """Executes any string; after a win, nothing happens any more."""
        if self._last is None or self._engine is None:
            raise RuntimeError("step before reset: call reset(**task) first")
        if not self._last.done:
            self._turns += 1
            with LOCK:
                self._last = self._step_of(self._engine.step(action))
        return self._last

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        known = self._last.admissible if admissible is None and self._last is not None else admissible
        return project(response, self.options.validity, known)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._loaded = self._last = None

    def _start(self, identity: str, task: Mapping[str, Any]) -> Moment:
        if self._engine is None:
            self._engine = make_engine(self.options.engine)
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
        if split not in self._roots:
            raise ValueError(f"split {split!r} is unknown; this environment has {sorted(self._roots)}")
        return Path(self._roots[split])

    def _step_of(self, moment: Moment) -> Step:
        now = self._engine.sub_goals() if self._engine is not None else set()
        new, self._reached = now - self._reached, self._reached | now
        return Step(
            observation=moment.observation,
            reward=self.options.won_reward * moment.won,
            done=moment.won,
            won=moment.won,
            score=float(moment.won),
            admissible=moment.admissible,
            info=self._facts | {"won": moment.won},
            lost=self._is_lost(),
            milestone="; ".join(sorted(new)) or None,
        )

    def _is_lost(self) -> bool:
        left = self.max_turns - self._turns
        return self._engine is not None and left < MOST_NEEDED and self._engine.least_commands() > left


@dataclass(frozen=True)
class Factory:
    """Makes environments one by one, or a pool of processes that plays many games
    (`alignopsd_trl.environments.base.open_batch` calls `batch`). Can be pickled."""

    options: AlfWorldOptions = field(default_factory=AlfWorldOptions)
    roots: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> AlfWorldEnvironment:
        return AlfWorldEnvironment(self.options, self.roots)

    def prepare(self) -> None:
        """Imports and parses all that games share and makes an engine, so that a bad worker fails at its start."""
        Grammar(logic_files()[1])
        make_engine(self.options.engine).close()

    def batch(self, size: int, time_limit: float = 60.0, workers: int | None = None) -> ProcessBatch:
        """Makes a process pool for ``size`` games.

        Raises:
            MissingPackage: without the extra ``alfworld``.
        """
        require()
        return ProcessBatch(self, size, time_limit, workers)
