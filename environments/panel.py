"""Task panels: the fixed list of tasks behind a reported number, the same on every machine."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "test")


def _written(panel: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row whose values JSON can hold.

    Raises:
        ValueError: names the column that can't be.
    """
    for name, value in row.items():
        try:
            json.dumps(value, default=_as_text)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                f"panel {panel!r}, row {number}: column {name!r} holds a {type(value).__name__}, which its checksum "
                "can't hold; store it as text or numbers"
            ) from None
    return dict(row)


def _as_text(value: Any) -> Any:
    """Converts a date, bytes or an array to what JSON holds."""
    if isinstance(value, date | time | timedelta):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no JSON")


@dataclass(frozen=True)
class TaskPanel:
    """An ordered list of dataset rows, each with a ``task_id``; no task occurs twice.

    Raises:
        ValueError: on an empty panel, a row without ``task_id`` or a repeated one.
    """

    environment: str
    name: str
    rows: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError(f"panel {self.name!r} of {self.environment!r} has no tasks")
        seen: set[str] = set()
        for number, row in enumerate(self.rows):
            identity = row.get("task_id")
            if not isinstance(identity, str) or not identity:
                raise ValueError(f"panel {self.name!r}, row {number}: field 'task_id' must be a non-empty string")
            if identity in seen:
                raise ValueError(f"panel {self.name!r}, row {number}: task_id {identity!r} occurs twice")
            seen.add(identity)

    @classmethod
    def of(cls, environment: str, name: str, rows: Iterable[Mapping[str, Any]]) -> TaskPanel:
        return cls(environment, name, tuple(dict(row) for row in rows))

    @property
    def task_ids(self) -> tuple[str, ...]:
        return tuple(row["task_id"] for row in self.rows)

    @property
    def checksum(self) -> str:
        """The first 16 hex digits of the sha256 over the rows in order (ids and every other column)."""
        rows = [_written(self.name, number, row) for number, row in enumerate(self.rows)]
        text = json.dumps([self.environment, rows], sort_keys=True, ensure_ascii=False, default=_as_text)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def head(self, count: int) -> TaskPanel:
        """Returns the first ``count`` tasks as a panel with a name of its own; all of them if there are no more."""
        if count >= len(self.rows):
            return self
        return TaskPanel(self.environment, f"{self.name}[:{count}]", self.rows[:count])

    def drawn(self, count: int) -> TaskPanel:
        """Returns ``count`` tasks in the panel's order, the same on every machine: those whose ids have the smallest
        sha256. All of them if there are no more."""
        ranked = sorted(self.task_ids, key=lambda identity: hashlib.sha256(identity.encode()).digest())
        chosen = set(ranked[:count])
        rows = tuple(row for row in self.rows if row["task_id"] in chosen)
        return TaskPanel(self.environment, f"{self.name}/{count}", rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)


class SplitTasks(ABC):
    """The tasks of an environment in the splits `SPLITS`, as a dataset and as a panel.

    Attributes:
        environment: its name.
        suffix: the end of its panels' names.
    """

    environment: str
    suffix = ""

    @abstractmethod
    def _rows(self, split: str) -> Sequence[dict[str, Any]]: ...

    def rows(self, split: str) -> Sequence[dict[str, Any]]:
        """Returns the tasks of a split, in order.

        Raises:
            ValueError: if there is no such split.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        return self._rows(split)

    def dataset(self, split: str) -> Dataset:
        from datasets import Dataset

        return Dataset.from_list(list(self.rows(split)))

    def panel(self, name: str) -> TaskPanel:
        return TaskPanel.of(self.environment, f"{name}{self.suffix}", self.rows(name))


def trained_too(trained: Any, rows: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Returns the warning that tasks of an evaluation are trained on, by their ids; `None` if none of them is.

    Args:
        trained: a dataset; one without a length, which streams, is not read.
        rows: the evaluation's.
        name: of the evaluation.
    """
    ids = set(trained["task_id"]) if hasattr(trained, "__len__") else set()
    played = dict.fromkeys(row["task_id"] for row in rows)
    both = [identity for identity in played if identity in ids]
    if not both:
        return None
    return (
        f"{len(both)} of the {len(played)} tasks of {name} are trained on too (the first: {both[0]!r}), so that it "
        "says little about other tasks; keep them apart"
    )
