"""Ends a run with the weights of the round that won most of some held-out tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import TrainerCallback

from alignopsd_trl.common.files import replacing
from alignopsd_trl.config import BEST
from alignopsd_trl.runs.folder import BEST_FILE


class KeepBest(TrainerCallback):
    """Plays held-out tasks before the first update and after each round. Training ends with the weights that won most
    of them, later ones where some won as many. The first ones are replaced only by some that won more by over one
    standard error: the best of several counts is often the luckiest.

    Args:
        trainer: the run's; its trained weights must be whole on each process.
        rows: dataset rows that are not trained on.
        skills: whether the policy's prompt has the skill.
    """

    def __init__(self, trainer: Any, rows: Sequence[Mapping[str, Any]], skills: bool = False):
        self._trainer, self._rows, self._skills = trainer, rows, skills
        self._file = Path(trainer.args.output_dir) / BEST_FILE
        self._won, self._update, self._weights = -1.0, 0, dict[str, torch.Tensor]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer.is_fsdp_enabled or self._trainer.is_deepspeed_enabled:
            raise ValueError(
                "KeepBest (held_out=...) keeps whole weights, which FSDP and DeepSpeed split; leave it out"
            )
        if state.global_step and self._file.is_file():
            with safe_open(self._file, "pt") as kept:
                self._weights = {name: kept.get_tensor(name) for name in kept.keys()}
                told = kept.metadata()
            self._won, self._update = float(told["won"]), int(told["update"])
        elif not state.global_step:
            self._look(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % max(1, round(args.steps_per_round)) == 0:
            self._look(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._update != state.global_step and self._weights:
            with torch.no_grad():
                for name, weights in self._trained().items():
                    weights.copy_(self._weights[name])
        self._say(
            f"the weights of update {self._update} stay: {100 * self._won:.1f} % of {len(self._rows)} held-out tasks"
        )

    def _look(self, update: int) -> None:
        """Plays the held-out tasks and keeps the weights if they won as many as the best."""
        metrics = self._trainer.panels.metrics(
            self._rows, "held out", self._skills, self._trainer.args.eval_temperature
        )
        won = metrics.get(BEST, -1.0)
        self._say(f"held out: {100 * won:.1f} % after {update} updates")
        if self._better(won):
            self._won, self._update = won, update
            self._weights = {name: one.detach().to("cpu", copy=True) for name, one in self._trained().items()}
            if self._trainer.is_world_process_zero():
                with replacing(self._file.parent) as partial:
                    save_file(self._weights, partial / BEST_FILE, {"won": str(won), "update": str(update)})

    def _better(self, won: float) -> bool:
        if self._update or not self._weights:
            return won >= self._won
        spread = sum(max(0.0, one * (1 - one)) for one in (won, self._won))
        return won - self._won > math.sqrt(spread / len(self._rows))

    def _trained(self) -> dict[str, torch.Tensor]:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return {name: one for name, one in model.named_parameters() if one.requires_grad}

    def _say(self, line: str) -> None:
        if self._trainer.is_world_process_zero():
            print(line, flush=True)
