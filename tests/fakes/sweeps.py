"""Parametrised sweeps of which the quick run takes a part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_full(cases: Iterable[Any], quick: int = 1) -> list[Any]:
    """The first ``quick`` cases belong to every run, the others have the mark ``full``."""
    return [
        case
        if number < quick
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
        for number, case in enumerate(cases)
    ]
