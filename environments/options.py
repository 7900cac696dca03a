"""Options of an environment: one frozen dataclass each, with common checks and descriptions."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

Own = TypeVar("Own", bound="Options")
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)


def option(
    default: Any, help: str, *, choices: tuple[str, ...] = (), least: float | None = None, described: bool = True
) -> Any:
    """Makes a field of an `Options` class.

    Args:
        default: its default.
        help: its meaning.
        choices: all values that it can have.
        least: the smallest value.
        described: whether results depend on it and so record it.
    """
    metadata = {"help": help, "choices": choices, "least": least, "described": described}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """Base of the options of all environments.

    Raises:
        ValueError: on a value of another type, that is not one of its choices or below the least; names the field, the
            value and the allowed ones.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            value, choices, least = getattr(self, each.name), each.metadata["choices"], each.metadata["least"]
            try:
                TypeAdapter(hints[each.name], config=_ANY_CLASS).validate_python(value, strict=True)
            except ValidationError:
                raise ValueError(f"{each.name}={value!r} must be of type {each.type}") from None
            if choices and value not in choices:
                raise ValueError(f"{each.name}={value!r} is unknown; use one of {', '.join(map(repr, choices))}")
            if least is not None and value is not None and value < least:
                raise ValueError(f"{each.name}={value!r} must be at least {least}")

    @classmethod
    def of(cls: type[Own], given: Mapping[str, Any]) -> Own:
        """Makes the options from keyword arguments.

        Raises:
            ValueError: also on a name that is no option, with the nearest ones.
        """
        known = {each.name for each in fields(cls)}
        for name in sorted(set(given) - known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"option {name!r} is unknown; {hint}There are {', '.join(sorted(known))}")
        return cls(**{name: os.fspath(v) if isinstance(v, os.PathLike) else v for name, v in given.items()})

    def described(self) -> dict[str, Any]:
        """Returns the options that affect results."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.metadata["described"]}
