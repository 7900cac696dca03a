"""Weights of a teacher that differ from the policy's: other values of the trained parameters, with LoRA the adapter's.

They are swapped into the model while the teacher plays, thinks or scores, so that every back end serves the teacher.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from alignopsd_trl.common.strategies import held, part_of, reshard, whole_of

if TYPE_CHECKING:
    from accelerate import Accelerator

FILE = "teacher.safetensors"


class TeacherWeights(TrainerCallback):
    """Values of a model's trained parameters, by default a copy of the current ones.

    If training later shards a model that was whole (FSDP2, ZeRO-3), the values are sharded alike, from the first
    process's copy.

    Args:
        model: whole on each process, or in ZeRO-3's shards.
        given: parameters by name whose values are used without a copy; by default the model's are copied.
        accelerator: shards the model.

    Attributes:
        adds_nothing: whether they are those of a fresh LoRA adapter, so that they are the model without it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        given: Mapping[str, torch.Tensor] | None = None,
        accelerator: Accelerator | None = None,
    ):
        self._model: Any = model
        self._accelerator = accelerator
        self._trained = _trained(model)
        source = self._trained if given is None else given
        self._whole = {name for name in self._trained if held(source[name]) is source[name]}
        values = {name: held(source[name]).detach() for name in self._trained}
        self._values = {name: value.clone() for name, value in values.items()} if given is None else values
        self.adds_nothing = self._whole == self._values.keys() and _adds_nothing(self._values)

    def on_train_begin(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        reshard(self._model, self._accelerator)
        self._trained = _trained(self._model)
        for name, parameter in self._trained.items():
            part, value = held(parameter), self._values[name]
            spread = name in self._whole and part is not parameter
            self._values[name] = part_of(value, parameter) if spread else value.to(part.device, part.dtype)
        self._whole.clear()

    @contextlib.contextmanager
    def in_place(self) -> Generator[None]:
        """Swaps the values into the model while the context is open; it must not be trained meanwhile. Only FSDP2's
        shards are copied, since FSDP2 keeps pointers to their memory. A LoRA adapter that adds nothing is switched off
        instead, which spares its products."""
        with self._model.disable_adapter() if self.adds_nothing else self.swapped():
            yield

    @contextlib.contextmanager
    def swapped(self) -> Generator[None]:
        """As `in_place`, but the model's parameters have the values, whatever they are: a push reads them."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        reshard(self._model, self._accelerator)
        for name, parameter in self._trained.items():
            here, other = held(parameter), self._values[name]
            if isinstance(parameter, DTensor):
                kept = here.clone()
                here.copy_(other)
                other.copy_(kept)
            else:
                here.data, self._values[name] = other, here.data

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Moves the values towards the model's, by the fraction ``rate`` of the difference."""
        self.adds_nothing = False
        reshard(self._model, self._accelerator)
        for name, parameter in self._trained.items():
            self._values[name].lerp_(held(parameter), rate)

    @torch.no_grad()
    def save(self, folder: Path, writes: bool = True) -> None:
        """Saves the whole values next to a checkpoint. Every process must call it; one of them ``writes``."""
        whole = {name: whole_of(self._values[name], one).contiguous() for name, one in self._trained.items()}
        if writes:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(whole, folder / FILE)

    def load(self, folder: Path) -> None:
        """Loads the values that `save` wrote, before training begins. Every process must call it."""
        for name, value in load_file(folder / FILE).items():
            self._values[name].copy_(part_of(value, self._trained[name]))
        self.adds_nothing = False


def _trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _adds_nothing(values: Mapping[str, torch.Tensor]) -> bool:
    """Whether the values are those of a fresh LoRA adapter: in each pair of matrices A and B, all of B is 0."""
    plain = all(".lora_A." in name or ".lora_B." in name for name in values)
    return bool(values) and plain and not any(value.any() for name, value in values.items() if ".lora_B." in name)


class FollowingTeacher(TrainerCallback):
    """Moves a teacher towards the policy every ``steps`` optimiser steps, see `TeacherWeights.follow`.

    Checkpoints contain such a teacher, unlike one with the initial weights, which a resumed run loads again.
    """

    def __init__(self, weights: TeacherWeights, rate: float, steps: int):
        self.weights, self._rate, self._steps = weights, rate, steps

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        if state.global_step % self._steps == 0:
            self.weights.follow(self._rate)
