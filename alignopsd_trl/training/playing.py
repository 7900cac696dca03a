"""Episodes of a trainer: sibling groups for a round, a panel for an evaluation."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from alignopsd_trl import trl_compat
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.evaluation import EvaluationResult, Outcome, evaluating, play_panel, summarise
from alignopsd_trl.policy.progress import Bar
from alignopsd_trl.prompts import Renderer
from alignopsd_trl.reading import reader_for
from alignopsd_trl.rollout import (
    Counters,
    Player,
    episode_seed,
    episode_seeds,
    no_skills,
    rollout_metrics,
    siblings_before,
)
from alignopsd_trl.runs.health import RunStopped, Tally
from alignopsd_trl.turns import Trajectory


class Playing(GRPOTrainer):
    """A trainer that plays episodes with its policy, on environments that it opens when they are first needed."""

    def _play_groups(self, inputs: Sequence[Mapping[str, Any]], step: int) -> list[Trajectory]:
        """Episodes of whole sibling groups: `num_generations` equal rows side by side are one group."""
        siblings = self.num_generations
        seen: dict[str, int] = {}
        tasks: list[str] = []
        for first in range(0, len(inputs), siblings):
            identity = inputs[first]["task_id"]
            if any(row["task_id"] != identity for row in inputs[first : first + siblings]):
                raise RuntimeError("a sibling group straddles processes; this is a bug, please report it")
            count = seen[identity] = seen.get(identity, 0) + 1
            tasks += [identity if count == 1 else f"{identity}#{count}"] * siblings
        seeds = [episode_seeds(row["task_id"], step, place % siblings) for place, row in enumerate(inputs)]
        skilled = self.method.needs_teacher or self.method.skills_in_rollout
        with self._bar(len(inputs), f"update {step + 1}/{self.state.max_steps}: rollout") as progress:
            player = self._player(skilled, self.method.skills_in_rollout, progress)
            return player.play(inputs, seeds, tasks)

    def _player(
        self, skilled: bool, skills_in_rollout: bool, progress: Callable[[int], None] = lambda ended: None
    ) -> Player:
        batch = self._environments()
        return Player(
            environments=batch,
            renderer=Renderer(
                self.processing_class,
                batch.prompt,
                self.args.max_prompt_length,
                self.chat_template_kwargs,
                self.args.history,
                self.args.past_thinking,
                self.args.thinking_tags,
            ),
            generate=lambda prompts: trl_compat.generate(self, prompts),
            tokenizer=self.processing_class,
            end_ids=self.eos_token_ids,
            skills=self._skills if skilled else no_skills,
            skills_in_rollout=skills_in_rollout,
            max_turns=self.args.max_turns,
            agree=self.processes.agree,
            progress=progress,
            reader=self._reader,
        )

    def _environments(self) -> Any:
        if self._environment_batch is None:
            size = max(
                self.args.per_device_train_batch_size * self.args.steps_per_generation,
                self.args.per_device_eval_batch_size,
            )
            self._environment_batch = open_batch(self._environment_factory, size, self.args.environment_time_limit)
            self._environment_counters = Counters(self._environment_batch)
            self._reader = reader_for(self.processing_class, self._environment_batch, self.args.thinking_tags)
            self._environment_closer = weakref.finalize(self, self._environment_batch.close)
            self._environment_slots = size
        return self._environment_batch

    def close(self) -> None:
        """Closes the environments; the next round or evaluation opens new ones. Training does it when it ends, and
        what is open still goes with the trainer."""
        if self._environment_batch is not None:
            self._environment_closer()
            self._environment_batch = None

    def _walker(self) -> tuple[Player, int, int]:
        """The rollout's player, how many episodes it plays side by side, and a seed of this round and process."""
        skilled = self.method.needs_teacher or self.method.skills_in_rollout
        player = self._player(skilled, self.method.skills_in_rollout)
        return player, self._environment_slots, 1_000_003 * self.accelerator.process_index + self._round

    @trl_compat.with_sampler_awake
    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        """Plays the rows' episodes and logs their outcome; there is no loss to report. Training's own random state is
        left as it was."""
        process = self.accelerator.process_index
        tasks = [row["task_id"] for row in inputs]
        places = siblings_before(gather_object([tasks]), process)
        seeds = [episode_seeds(task, 0, place) for task, place in zip(tasks, places, strict=True)]
        skills = self.method.skills_in_evaluation
        with (
            trl_compat.sampling(self, self.args.eval_temperature, self.max_completion_length),
            evaluating(self.model, episode_seed(" ".join(tasks), 0, process)),
        ):
            trajectories = self._player(skills, skills).play(inputs, seeds, tasks)
            self._score(trajectories)
        self._log_metrics("eval", rollout_metrics(trajectories))
        return torch.zeros((), device=self.accelerator.device), None, None

    @trl_compat.with_sampler_awake
    def evaluate_panel(
        self, panel: TaskPanel, skills: bool = False, temperature: float | None = None, seed: int = 0
    ) -> EvaluationResult:
        """Plays a panel once with the current policy, spread over all processes.

        Args:
            skills: put the skill into the policy's own prompt (the starred rows).
            temperature: of sampling; the config's ``eval_temperature`` by default.
            seed: of the sampling's random numbers; the training's own random state is left as it was.

        Returns:
            The same on every process.
        """
        temperature = self.args.eval_temperature if temperature is None else temperature
        if skills and self.skill_bank is None:
            raise ValueError("skills=True needs a skill_bank")
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        started = time.perf_counter()
        self._environments()
        with (
            self._bar(len(panel.rows[process::processes]), f"panel {panel.name}") as progress,
            trl_compat.sampling(self, temperature, self.max_completion_length),
        ):
            played = play_panel(
                self._player(skills, skills, progress),
                self.model,
                panel,
                slots=self._environment_slots,
                seed=seed,
                process=process,
                processes=processes,
                finished=self._score,
            )
        outcomes = gather_object([Outcome.of(one) for one in played])
        tally = Tally.total(gather_object([Tally.of(played)]))
        self._seconds["evaluation"] += time.perf_counter() - started
        if tally.usable == 0:
            raise RunStopped(f"panel {panel.name}: no episode could be played. The first reason: {tally.message}")
        result = summarise(panel, outcomes, skills=skills, temperature=temperature, seed=seed)
        self._remember(result)
        return result

    def _bar(self, total: int, title: str) -> Any:
        return Bar(total, title, disable=self.args.disable_tqdm or not self.accelerator.is_local_main_process)
