"""Reading golden vectors and comparing with them: discrete values must be equal, real ones within `TOLERANCE`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(os.environ.get("ALIGNOPSD_METHOD_VECTORS", Path(__file__).parent / "data" / "method"))
TOLERANCE = 1e-5
Case = dict[str, Any]


def cases(pipelines: bool = False) -> list[Any]:
    """(kind, case) of every ``*.json`` in the folder: of single stages, or of whole pipelines."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        data = json.loads(path.read_text())
        if (data["kind"] == "pipeline") == pipelines:
            found += [pytest.param(data["kind"], case, id=f"{path.stem}-{case['id']}") for case in data["cases"]]
    return found


# Comparing


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def compare(computed: Any, expected: Any, where: str) -> float:
    """Asserts equality of what is discrete; returns the largest difference of what is real."""
    if isinstance(expected, list):
        assert isinstance(computed, list) and len(computed) == len(expected), where
        pairs = zip(computed, expected, strict=True)
        return max((compare(*pair, f"{where}[{number}]") for number, pair in enumerate(pairs)), default=0.0)
    if isinstance(expected, dict):
        return max(compare(plain(computed[name]), value, f"{where}.{name}") for name, value in expected.items())
    if not isinstance(expected, float) and not isinstance(computed, float):
        assert computed == expected, f"{where}: {computed!r} is not {expected!r}"
        return 0.0
    assert isinstance(computed, (int, float)), where
    assert abs(computed - expected) <= TOLERANCE, f"{where}: {computed} is not {expected}"
    return abs(computed - expected)


# Reading


def real(values: Any) -> torch.Tensor:
    return torch.tensor(numbers(values), dtype=torch.float32)


def numbers(values: Any) -> Any:
    return [numbers(value) for value in values] if isinstance(values, list) else float(values)


def flag(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def matrix(values: Any, make: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """Keeps two dimensions where there are no rows or columns."""
    made = make(values)
    return made if made.dim() == 2 else made.reshape(len(values), -1)


def identity_columns(identities: list[list[Any]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def ranks(values: list[str]) -> torch.Tensor:
        order = {value: number for number, value in enumerate(sorted(set(values)))}
        return torch.tensor([order[value] for value in values], dtype=torch.int64)

    task, rollout, turn = zip(*identities, strict=True)
    return ranks(list(task)), ranks(list(rollout)), torch.tensor(turn, dtype=torch.int64)


def padded(lists: list[list[int]]) -> torch.Tensor:
    width = max((len(items) for items in lists), default=0) or 1
    return torch.tensor([items + [-1] * (width - len(items)) for items in lists], dtype=torch.int64)


def ragged(table: torch.Tensor, values: torch.Tensor | None = None) -> list[list[Any]]:
    values = table if values is None else values
    return [row[keep].tolist() for row, keep in zip(values, table >= 0, strict=True)]
