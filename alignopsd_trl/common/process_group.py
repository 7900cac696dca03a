"""Collectives: calls that all processes of a run must make, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from accelerate.utils import gather_object

if TYPE_CHECKING:
    from accelerate import Accelerator

Found = TypeVar("Found")
_REDUCTIONS = {"max": max, "min": min}


class ProcessGroup:
    """The processes of a run, as its [`~accelerate.Accelerator`] connects them."""

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator
        self.process = accelerator.process_index
        self.processes = accelerator.num_processes

    @property
    def is_local_main(self) -> bool:
        """Whether this is the first process of its machine."""
        return self._accelerator.is_local_main_process

    def agree(self, number: int) -> int:
        """All-reduces the maximum of a number."""
        if self.processes == 1:
            return number
        local = torch.tensor([number], device=self._accelerator.device)
        return int(self._accelerator.gather(local).max())

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """All-reduces the sum of a scalar or a vector."""
        return self._accelerator.gather(numbers.unsqueeze(0)).sum(0)

    def wait(self) -> None:
        """Waits for all processes."""
        self._accelerator.wait_for_everyone()

    def each(self, value: Any) -> list[Any]:
        """All-gathers a small value, which is pickled: one per process, in rank order."""
        return gather_object([value])

    def together(self, act: Callable[[], Found], kind: type[Exception] | tuple[type[Exception], ...]) -> Found:
        """Calls ``act`` and returns its result. If it raises one of ``kind`` on any process, all raise that."""
        return together(act, kind, self.each)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Concatenates the one-dimensional tensors of all processes and drops NaN."""
        width = self.agree(values.numel())
        padded = torch.nn.functional.pad(values, (0, width - values.numel()), value=float("nan"))
        gathered = self._accelerator.gather(padded)
        return gathered[~torch.isnan(gathered)]

    def reduce(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Reduces each metric over the processes that have it: ``.../max`` and ``.../min`` so, others by the mean."""
        everywhere = self.each(dict(metrics))
        reduced = {}
        for name in sorted({name for one in everywhere for name in one}):
            values = [one[name] for one in everywhere if name in one]
            reduction = _REDUCTIONS.get(name.rpartition("/")[2], lambda found: sum(found) / len(found))
            reduced[name] = reduction(values)
        return reduced


def together(
    act: Callable[[], Found],
    kind: type[Exception] | tuple[type[Exception], ...],
    each: Callable[[Any], list[Any]],
    agree: Callable[[int], int] = lambda number: 1,
) -> Found:
    """Is `ProcessGroup.together`, by the collectives of a group. With ``agree`` errors alone are gathered."""
    found: list[Found] = []
    problem: Exception | None = None
    try:
        found.append(act())
    except kind as error:
        problem = error
    problems = [one for one in each(problem) if one is not None] if agree(int(problem is not None)) else []
    if problems:
        raise problem or problems[0]
    return found[0]
