"""The weights of a teacher that does not move with the policy: other values for the trained parameters.

They take the policy's place for as long as the teacher plays, thinks or scores, so that every way to sample and to
score serves it. With an adapter that is the adapter alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from alignopsd_trl.reading import Reader
from alignopsd_trl.rollout import BatchSampler, Responses

FILE = "teacher.safetensors"


class TeacherWeights:
    """Values of a model's trained parameters, which begin as the model is now.

    Args:
        model: whole on each process, not in shards.
        given: values by the parameters' names that are taken as they are; a copy of the model's by default.
    """

    def __init__(self, model: torch.nn.Module, given: Mapping[str, torch.Tensor] | None = None):
        self._trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        source = self._trained if given is None else given
        values = {name: source[name].detach() for name in self._trained}
        self._values = {name: value.clone() for name, value in values.items()} if given is None else values

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """While the model computes with them. Nothing is copied; the model must not be trained meanwhile."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self._trained.items():
            parameter.data, self._values[name] = self._values[name], parameter.data

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Moves the values towards the model's: the share ``rate`` of the way."""
        for name, parameter in self._trained.items():
            self._values[name].lerp_(parameter.detach(), rate)

    def save(self, folder: Path) -> None:
        """Writes the values beside a checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self._values.items()}, folder / FILE)

    def load(self, folder: Path) -> None:
        """Takes up what `save` wrote."""
        for name, value in load_file(folder / FILE).items():
            self._values[name].copy_(value)


class FollowingTeacher(TrainerCallback):
    """A teacher that follows the policy: every ``steps`` optimiser steps, the share ``rate`` of the way.

    It is kept with the checkpoints, unlike the initial weights, which a resumed run loads again.
    """

    def __init__(self, weights: TeacherWeights, rate: float, steps: int):
        self.weights, self._rate, self._steps = weights, rate, steps

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        if state.global_step % self._steps == 0:
            self.weights.follow(self._rate)


@dataclass(frozen=True)
class TeacherSampler:
    """A [`~alignopsd_trl.rollout.BatchSampler`] that samples from the teacher's weights.

    Args:
        sampler: of the policy, with a prefix cache of its own if it has one.
    """

    sampler: BatchSampler
    weights: TeacherWeights

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        with self.weights.in_place():
            return self.sampler.respond(prompts, until)


@dataclass(frozen=True)
class SilentTeacher:
    """A [`~alignopsd_trl.rollout.BatchSampler`] of a teacher that can only score: vLLM has the policy's weights alone.

    Raises:
        ValueError: when it is asked.
    """

    kind: str

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        raise ValueError(
            f"teacher_model_kind={self.kind!r} can't think or play with use_vllm=True, whose engine has the policy's "
            "weights alone; use teacher_model_kind='live' or use_vllm=False"
        )
