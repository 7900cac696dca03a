"""Ends a run with the weights of the round that won most of some held-out tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import TrainerCallback

from alignopsd_trl.common.files import replacing
from alignopsd_trl.config import BEST, VARIANCE
from alignopsd_trl.runs.files import BEST_FILE
from alignopsd_trl.runs.health import RunStopped
from alignopsd_trl.runs.state import RunFolderError


@dataclass(frozen=True)
class Looked:
    """What the held-out tasks said of some weights: mean (``won``) and variance over tasks of a success or a score."""

    update: int
    measure: str
    won: float
    variance: float

    def beats(self, best: Looked, tasks: int) -> bool:
        if best.update:
            return self.won >= best.won
        return self.won - best.won > math.sqrt((self.variance + best.variance) / tasks)

    def __str__(self) -> str:
        return f"{100 * self.won:.1f} %" if self.measure == "success" else f"a mean score of {self.won:.3g}"


class KeepBest(TrainerCallback):
    """Plays held-out tasks, the ``rows``, before the first update and after each round, with ``skills`` in the policy's
    prompt or not. Training ends with the weights that won most of them, or whose mean score is the highest where
    success is unknown; later ones where some did as well. The first ones are replaced only by some that are better by
    over one standard error: the best of several means is often the luckiest."""

    def __init__(self, trainer: Any, rows: Sequence[Mapping[str, Any]], skills: bool = False):
        self._trainer, self._rows, self._skills = trainer, rows, skills
        self._file = Path(trainer.args.output_dir) / BEST_FILE
        self._best, self._weights = Looked(0, "", 0.0, 0.0), dict[str, torch.Tensor]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer.is_fsdp_enabled or self._trainer.is_deepspeed_enabled:
            raise ValueError(
                "KeepBest (held_out=...) keeps whole weights, which FSDP and DeepSpeed split; leave it out"
            )
        if not state.global_step:
            self._look(0)
        elif problem := self._restore():
            raise RunFolderError(f"{problem}; bring it back, or overwrite_output_dir=True starts again")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % max(1, round(args.steps_per_round)) == 0:
            self._look(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._best.update != state.global_step and self._weights:
            with torch.no_grad():
                for name, weights in self._trained().items():
                    weights.copy_(self._weights[name])
        self._say(f"the weights of update {self._best.update} stay: {self._best} of {len(self._rows)} held-out tasks")

    def _restore(self) -> str:
        """Reads the best weights of the earlier sessions; returns what is wrong with their file."""
        if not self._file.is_file():
            return f"{self._file} is gone, which held the best weights before this checkpoint"
        try:
            with safe_open(self._file, "pt") as kept:
                self._weights, told = {name: kept.get_tensor(name) for name in kept.keys()}, kept.metadata() or {}
            numbers = float(told["won"]), float(told["variance"])
            self._best, run = Looked(int(told["update"]), told["measure"], *numbers), told["run"]
        except (SafetensorError, LookupError, ValueError) as error:
            return f"{self._file} is cut short or damaged ({error})"
        shapes = [{name: one.shape for name, one in part.items()} for part in (self._weights, self._trained())]
        if run != self._trainer.run_id or shapes[0] != shapes[1]:
            return f"{self._file} is of another run ({run}; this one is {self._trainer.run_id})"
        return ""

    def _look(self, update: int) -> None:
        """Plays the held-out tasks, keeps the best weights. Raises `RunStopped` if success and score are unknown."""
        temperature = self._trainer.args.eval_temperature
        metrics = self._trainer.panels.metrics(self._rows, "held out", self._skills, temperature, True)
        if BEST not in metrics:
            raise RunStopped("held_out: neither success nor score of its tasks is known; leave it out")
        unknown = "episodes/score" in metrics and "episodes/success" not in metrics
        mean = metrics[BEST]
        variance = metrics.get(VARIANCE, max(0.0, mean * (1 - mean)))
        now = Looked(update, "score" if unknown else "success", mean, variance)
        self._say(f"held out: {now} after {update} updates{', success unknown' * unknown}")
        if self._weights and now.measure != self._best.measure:
            self._say(f"no {now.measure} of update {self._best.update} is known: the weights of {update} don't stay")
        elif not self._weights or now.beats(self._best, len(self._rows)):
            self._keep(now)

    def _keep(self, now: Looked) -> None:
        self._best = now
        self._weights = {name: one.detach().to("cpu", copy=True) for name, one in self._trained().items()}
        if self._trainer.is_world_process_zero():
            told = {name: str(value) for name, value in (vars(now) | {"run": self._trainer.run_id}).items()}
            with replacing(self._file.parent) as partial:
                save_file(self._weights, partial / BEST_FILE, told)

    def _trained(self) -> dict[str, torch.Tensor]:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return {name: one for name, one in model.named_parameters() if one.requires_grad}

    def _say(self, line: str) -> None:
        if self._trainer.is_world_process_zero():
            print(line, flush=True)
