"""Weights of a teacher that differ from the policy's: other values of the trained parameters, with LoRA the adapter's.

They are swapped into the model while the teacher plays, thinks or scores, so that every back end serves the teacher.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from alignopsd_trl.common.strategies import held, part_of, reshard

if TYPE_CHECKING:
    from accelerate import Accelerator


class TeacherWeights(TrainerCallback):
    """Values of a model's trained parameters, by default a copy of the current ones.

    If training later shards a model that was whole (FSDP2, ZeRO-3), the values are sharded alike, from the first
    process's copy.

    Args:
        model: whole on each process, or in ZeRO-3's shards.
        given: parameters by name whose values are used without a copy; by default the model's are copied.

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


def _trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _adds_nothing(values: Mapping[str, torch.Tensor]) -> bool:
    """Whether the values are those of a fresh LoRA adapter: in each pair of matrices A and B, all of B is 0."""
    plain = all(".lora_A." in name or ".lora_B." in name for name in values)
    return bool(values) and plain and not any(value.any() for name, value in values.items() if ".lora_B." in name)
