"""A second device where there is none: CPU tensors in a wrapper that says it is elsewhere and refuses operands of two
devices, as CUDA does. Copies between devices, CPU scalars and CPU indices into a tensor there are fine, as on CUDA.

It shows what would raise "Expected all tensors to be on the same device", and counts what a host would wait for. It
knows nothing of a GPU's kernels, of Triton, NCCL, speed or memory.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Generator
from typing import Any

import torch
from accelerate.state import PartialState
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

DEVICE = torch.device("lazy:0")  # a device type that torch knows and that needs no driver
_COPIES = ("aten._to_copy", "aten.copy_")
_INDEX = ("aten.index.", "aten.index_put", "aten._index_put_impl", "aten._unsafe_index")
_WAITS = (
    *("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique2", "aten.unique_dim"),
    *("aten.unique_consecutive", "aten.repeat_interleave.Tensor", "aten.bincount", "aten.equal"),
)


class MixedDevices(RuntimeError):
    """An operation had operands of two devices."""


class There(torch.Tensor):
    """A tensor of the second device."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> There:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __init__(self, inner: torch.Tensor):
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        SecondDevice.entered.waits_for("tolist")
        return self.detach().inner.tolist()  # ty: ignore[missing-attribute]

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can't convert a tensor of the second device to numpy; use Tensor.cpu()")

    __array__ = numpy

    def __repr__(self, *args: Any, **options: Any) -> str:
        return f"There({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return SecondDevice.entered.run(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """The device, while it is entered.

    Attributes:
        operations: how many ran there.
        waits: what the host waited for, and where.
    """

    entered: SecondDevice

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.waits: Counter[str] = Counter()

    def __enter__(self) -> SecondDevice:
        SecondDevice.entered = self
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(False)
        super().__exit__(*error)

    def waits_for(self, what: str) -> None:
        self.waits[f"{what} at {_caller()}"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        name, given = str(func), kwargs.get("device")
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        far = [value for value in tensors if is_there(value)]
        target = None if given is None else torch.device(given).type == DEVICE.type
        if not far and not target:
            return func(*args, **kwargs)
        self.operations += 1
        self._refuse(name, args, tensors)
        self._count(name, args, target)
        if given is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        found = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        stays = is_there(args[0]) if name.startswith("aten.copy_") else target is not False
        if name.startswith("aten._local_scalar_dense") or not stays:
            return tree_map(_plain, found)
        known = {id(value.inner): value for value in far}
        return tree_map(lambda value: _wrapped(value, known), found)

    def _refuse(self, name: str, args: tuple, tensors: list[torch.Tensor]) -> None:
        devices = {is_there(value) for value in tensors if is_there(value) or value.dim() > 0}
        if len(devices) < 2 or name.startswith(_COPIES):
            return
        rest = [value for value in tree_leaves(args[2:]) if isinstance(value, torch.Tensor)]
        if name.startswith(_INDEX) and is_there(args[0]) and all(is_there(one) or one.dim() == 0 for one in rest):
            return
        shapes = [f"{value.device.type}{tuple(value.shape)}" for value in tensors]
        raise MixedDevices(f"{name} of {', '.join(shapes)} at {_caller()}")

    def _count(self, name: str, args: tuple, target: bool | None) -> None:
        if name.startswith(_WAITS):
            self.waits_for(name)
        masks = [one for one in tree_leaves(args[1:2]) if isinstance(one, torch.Tensor) and one.dtype == torch.bool]
        if name.startswith(_INDEX) and any(map(is_there, masks)):
            self.waits_for("boolean index")
        made = name.startswith("aten._to_copy") and target is False and is_there(args[0])
        if made or (name.startswith("aten.copy_") and not is_there(args[0]) and is_there(args[1])):
            self.waits_for("copy to the CPU")


def is_there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE.type


def moved(value: torch.Tensor) -> torch.Tensor:
    """A copy on the second device."""
    return There(value.detach().clone())


def move(module: torch.nn.Module) -> None:
    """Moves parameters, tied ones together, and buffers."""
    known: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                twin = torch.nn.Parameter(moved(value), requires_grad=value.requires_grad)
                part._parameters[name] = known.setdefault(id(value), twin)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = moved(value)
        if isinstance(getattr(part, "original_inv_freq", None), torch.Tensor):
            part.original_inv_freq = moved(part.original_inv_freq)


@contextlib.contextmanager
def second_device() -> Generator[SecondDevice]:
    """The device, with TRL's head in torch in place of Triton's kernels, and Accelerate's state put back."""
    kernels, labelled = chunked_logprob._use_triton, trl_utils._use_triton
    autocast, before = torch.is_autocast_enabled, PartialState._shared_state.get("device")
    chunked_logprob._use_triton = lambda device: False
    trl_utils._use_triton = lambda device: True  # as on CUDA: the labelled positions alone
    torch.is_autocast_enabled = lambda *kind: False if kind == (DEVICE.type,) else autocast(*kind)
    try:
        with SecondDevice() as device:
            yield device
    finally:
        chunked_logprob._use_triton, trl_utils._use_triton = kernels, labelled
        torch.is_autocast_enabled = autocast
        if before is not None:
            PartialState._shared_state["device"] = before


def move_trainer(trainer: Any) -> None:
    """Moves a trainer's models and tells Accelerate, transformers and the encoder where they are."""
    move(trainer.model)
    if trainer.ref_model is not None and trainer.ref_model is not trainer.model:
        move(trainer.ref_model)
    trainer.accelerator.state.device = DEVICE
    PartialState._shared_state["device"] = DEVICE
    trainer.args.__dict__["_setup_devices"] = DEVICE
    if trainer.encoder is not None:
        trainer.encoder.device = DEVICE


def _plain(value: Any) -> Any:
    return value.inner if isinstance(value, There) else value


def _wrapped(value: Any, known: dict[int, There]) -> Any:
    if not isinstance(value, torch.Tensor) or is_there(value):
        return value
    return known[id(value)] if id(value) in known else There(value)


def _caller() -> str:
    """The nearest line of the project, else of the libraries that it calls."""
    ours = ("second_device.py", "_dynamo", "_compile.py")
    lines = [frame for frame in traceback.extract_stack() if not any(name in frame.filename for name in ours)]
    own = [frame for frame in lines if "alignopsd_trl" in frame.filename]
    frame = (own or lines)[-1]
    return f"{frame.filename.rpartition('alignopsd_trl/')[2]}:{frame.lineno} {frame.line}"
