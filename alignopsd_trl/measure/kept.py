"""Keeps played episodes as JSON: only the types named here come back, and reading them runs no code of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.measure.mc_rollouts import MCRollout
from alignopsd_trl.rollout.renderer import Shown
from alignopsd_trl.turns import Seeds, StopReason, Thought, Trajectory, Turn

_KINDS: dict[str, Any] = {
    one.__name__: one for one in (Trajectory, Turn, Thought, Seeds, StopReason, MCRollout, Shown, View, Record)
}


class NotKept(ValueError):
    """Raised for a value of a type that can't be kept."""


def encoded(value: Any) -> Any:
    """Returns a value in JSON's types: others are an object of one name, their type's, with their content.

    Raises:
        NotKept: for a value of a type that `decoded` doesn't make.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encoded(one) for one in value]
    if kind is tuple:
        return {"tuple": encoded(list(value))}
    if isinstance(value, Mapping):
        return {"dict": [[encoded(name), encoded(one)] for name, one in value.items()]}
    if kind is not _KINDS.get(kind.__name__):
        raise NotKept(f"a {kind.__name__}")
    content = {"value": value.value} if kind is StopReason else getattr(value, "_asdict", lambda: vars(value))()
    return {kind.__name__: {name: encoded(one) for name, one in content.items()}}


def decoded(value: Any) -> Any:
    """Returns the value that `encoded` took.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: for content of another form.
    """
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind in ("tuple", "dict"):
        return (tuple if kind == "tuple" else dict)(decoded(content))
    return _KINDS[kind](**{name: decoded(one) for name, one in content.items()})
