"""Options as dataclasses whose fields carry limits for their values, which pydantic checks.

    strength: Share = option(0.2, "c: weights stay in [1 - c, 1 + c].")

The limits are part of a field's type (`Annotated`), where argument parsers do not see them. `check_options` checks all.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Share = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Temperature = Annotated[float, Field(ge=1e-3)]  # logits over a smaller one overflow
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(gt=0)]


def option(default: Any, told: str) -> Any:
    """Returns a dataclass field with its help text."""
    return field(default=default, metadata={"help": told})


def near(word: str, known: Sequence[str]) -> str:
    """Returns a hint at the known word that is most similar, or an empty text."""
    found = difflib.get_close_matches(word, known, 1)
    return f"did you mean {found[0]!r}? " if found else ""


def check_options(options: Any) -> None:
    """Checks each field of a dataclass whose type has limits or choices.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """
    hints = get_type_hints(type(options), include_extras=True)
    for one in fields(options):
        if any(limits or get_origin(part) is Literal for part, limits in _parts(hints[one.name])):
            check_values(vars(options), {one.name: hints[one.name]})


def check_values(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raises `ValueError` for the first value that its type does not allow; `None` is always allowed."""
    for name, hint in hints.items():
        if (value := values.get(name)) is not None:
            as_type(value, hint, f"{name}={value!r}")


def as_mapping(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Returns a configuration's field as a mapping. TRL's parser also takes it as JSON."""
    return dict(json.loads(given) if isinstance(given, str) else given or {})


def read_options(kind: type[Any], given: Mapping[str, Any] | None, owner: str) -> Any:
    """Makes an instance of the options class ``kind`` from a mapping such as `AlignOPSDConfig.method_options`.

    Values are converted and checked by `as_type`.

    Args:
        kind: a dataclass whose fields all have defaults.
        owner: the owner of the options, such as ``"method 'rlsd'"``, for the message.

    Raises:
        ValueError: for an unknown option, with the known ones; for a value of another type or against its rule.
    """
    given, known = given or {}, [one.name for one in fields(kind)]
    if unknown := sorted(set(given) - set(known)):
        options = f"known options: {', '.join(known)}" if known else "it has no options"
        raise ValueError(f"method_options[{unknown[0]!r}] is unknown to {owner}; {options}")
    place = f"method_options[{{name!r}}]={{value!r}} of {owner}"
    hints = get_type_hints(kind, include_extras=True)
    values = {name: as_type(value, hints[name], place.format(name=name, value=value)) for name, value in given.items()}
    return kind(**values)


_NAMES: dict[Any, str] = {
    **{bool: "true or false", int: "a whole number", float: "a number", str: "text"},
    **{list: "a list", dict: "a mapping", type(None): "null"},
}


def as_type(value: Any, hint: Any, place: str) -> Any:
    """Converts a value to the type of its field and checks its limits.

    A whole number may stand for a float, a float without fraction for a whole number, and text for either: YAML reads
    5e-2, which has no point, as text.

    Args:
        hint: the field's type, `Annotated` or not.
        place (`str`): field and value, for the message.

    Raises:
        ValueError: if the value can't be converted or is not allowed.
    """
    try:
        return _adapter(hint).validate_python(value, strict=isinstance(value, int))  # true is no number, 1 not true
    except ValidationError as error:
        raise ValueError(place + _problem(error.errors()[0]["type"], [*_parts(hint)])) from None


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


def _problem(kind: str, parts: Sequence[tuple[Any, dict[str, Any]]]) -> str:
    """Returns the end of a message: what a value of this kind of pydantic's errors must be."""
    if kind == "finite_number":
        return " must be a finite number"
    choices = [repr(choice) for part, _ in parts if get_origin(part) is Literal for choice in get_args(part)]
    limits = {name: limit for _, own in parts for name, limit in own.items()}
    if kind == "literal_error":
        told = f": choose one of {', '.join(choices)}"
    elif kind.startswith(("greater_than", "less_than")):
        told = _limited(**limits)
    else:
        return f" must be {' or '.join(_NAMES.get(get_origin(part) or part, str(part)) for part, _ in parts)}"
    return told + (", or None for the default rule" if type(None) in dict(parts) else "")


def _limited(ge: float | None = None, gt: float | None = None, le: float | None = None, lt: float | None = None) -> str:
    if le is not None or lt is not None:
        return f" must lie in [{ge:g}, {lt:g})" if le is None else f" must lie in [{ge:g}, {le:g}]"
    if gt is not None:
        return f" must be greater than {gt:g}"
    return f" must be {ge:g} or more" if ge else " must not be negative"


def _parts(hint: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the alternatives of a type, each with its limits by pydantic's names."""
    if get_origin(hint) is Annotated:
        limits = [asdict(limit) for limit in hint.__metadata__[0].metadata]
        yield get_args(hint)[0], {name: number for one in limits for name, number in one.items()}
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    else:
        yield hint, {}


_START = [os.getcwd()]


def whole_path(path: str | os.PathLike[str]) -> str:
    """Returns the absolute path of what a user wrote, and remembers the folder in which it was written: an environment
    may change the process's folder later."""
    _START[0] = os.getcwd()
    return os.path.abspath(path)


def path_as_given(path: str | os.PathLike[str]) -> str:
    """Returns a path for messages and files, relative if below the starting folder: these then name no home folder."""
    below = os.path.join(path, "").startswith(os.path.join(_START[0], ""))
    return os.path.relpath(path, _START[0]) if below else str(path)
