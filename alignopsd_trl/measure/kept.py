"""Keeps played episodes as JSON: only the types named here come back, and reading them runs no code of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import date, datetime
from typing import Any

import numpy as np

from alignopsd_trl.chat.prompts import Shown
from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.measure.mc_rollouts import MCRollout
from alignopsd_trl.turns import Seeds, StopReason, Thought, Trajectory, Turn

_DATACLASSES = {one.__name__: one for one in (Trajectory, Turn, Thought, Shown, View, Record)}
_TUPLES: dict[str, Any] = {"Seeds": lambda parts: Seeds(*parts), "MCRollout": lambda parts: MCRollout(*parts)}
_TUPLES |= {"tuple": tuple, "dict": dict}
_TEXTS: dict[str, Any] = {"StopReason": StopReason, "bytes": bytes.fromhex}
_TEXTS |= {"date": date.fromisoformat, "datetime": datetime.fromisoformat}


class NotKept(ValueError):
    """Raised for a value of a type that can't be kept."""


def encoded(value: Any) -> Any:
    """Returns a value in JSON's types: others are an object of one name, their type's, with their content.

    Raises:
        NotKept: for a value of a type that `decoded` doesn't make.
    """
    kind = type(value).__name__
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [encoded(one) for one in value]
    if type(value) is _DATACLASSES.get(kind):
        return {kind: {one.name: encoded(getattr(value, one.name)) for one in fields(value)}}
    if type(value) in (tuple, Seeds, MCRollout):
        return {kind: [encoded(one) for one in value]}
    if isinstance(value, Mapping):
        return {"dict": [[encoded(name), encoded(one)] for name, one in value.items()]}
    if type(value) in (StopReason, bytes, date, datetime):
        return {kind: value.value if kind == "StopReason" else value.hex() if kind == "bytes" else value.isoformat()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return encoded(value.tolist())
    raise NotKept(f"a {kind}")


def decoded(value: Any) -> Any:
    """Returns the value that `encoded` took.

    Raises:
        ValueError, TypeError, KeyError: for content of another form.
    """
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind in _DATACLASSES:
        return _DATACLASSES[kind](**{name: decoded(one) for name, one in content.items()})
    return _TUPLES[kind](decoded(content)) if kind in _TUPLES else _TEXTS[kind](content)
