"""Options as dataclasses whose fields carry rules for their values.

    strength: Share = field(default=0.2, metadata={"help": "c: weights stay in [1 - c, 1 + c]."})

A field's rule is part of its type (`Annotated`), where argument parsers do not see it. `check_options` checks all.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class OneOf:
    """One of some values.

    Args:
        choices: the values.
        reason: why other values are not allowed, for the message.
    """

    choices: tuple[Any, ...]
    reason: str = ""

    def problem(self, value: Any) -> str:
        return "" if value in self.choices else f": choose one of {', '.join(map(repr, self.choices))}{self.reason}"


@dataclass(frozen=True)
class Within:
    """A number in [low, high].

    Args:
        low, high: the bounds.
        to_high: whether `high` itself is allowed.
    """

    low: float
    high: float
    to_high: bool = True

    def problem(self, value: Any) -> str:
        if self.low <= value <= self.high and (self.to_high or value < self.high):
            return ""
        return f" must lie in [{self.low:g}, {self.high:g}{']' if self.to_high else ')'}"


@dataclass(frozen=True)
class AtLeast:
    """A number from `low` on.

    Args:
        low: inclusive.
    """

    low: float

    def problem(self, value: Any) -> str:
        if self.low <= value < math.inf:
            return ""
        if not math.isfinite(value):
            return " must be a finite number"
        return f" must be {self.low:g} or more" if self.low else " must not be negative"


@dataclass(frozen=True)
class Above:
    """A number greater than `low`.

    Args:
        low: exclusive.
    """

    low: float

    def problem(self, value: Any) -> str:
        if self.low < value < math.inf:
            return ""
        return f" must be greater than {self.low:g}" if math.isfinite(value) else " must be a finite number"


def near(word: str, known: Sequence[str]) -> str:
    """Returns a hint at the known word that is most similar, or an empty text."""
    found = difflib.get_close_matches(word, known, 1)
    return f"did you mean {found[0]!r}? " if found else ""


Share = Annotated[float, Within(0, 1)]
Size = Annotated[float, AtLeast(0)]
Positive = Annotated[float, Above(0)]
Count = Annotated[int, AtLeast(0)]
PositiveCount = Annotated[int, Above(0)]


def rules(kind: type[Any]) -> dict[str, Any]:
    """Returns the rules of a dataclass by field name, for the fields that have one."""
    hints = get_type_hints(kind, include_extras=True)
    found = {one.name: _rule(hints[one.name]) for one in fields(kind)}
    return {name: rule for name, rule in found.items() if rule is not None}


def _rule(hint: Any) -> Any:
    """Returns the rule of ``Annotated[type, rule]``, also inside of ``... | None``."""
    if get_origin(hint) is Annotated:
        return next((one for one in hint.__metadata__ if hasattr(one, "problem")), None)
    return next((rule for part in get_args(hint) if (rule := _rule(part)) is not None), None)


def check_options(options: Any, place: str = "{name}={value!r}") -> None:
    """Checks each field of a dataclass by its rule. `None` passes where it is the default.

    Args:
        options: an instance of the dataclass.
        place: how the message names a field and its value.

    Raises:
        ValueError: names the field, its value and the rule.
    """
    defaults = {one.name: one.default for one in fields(options)}
    for name, rule in rules(type(options)).items():
        value = getattr(options, name)
        if value is None and defaults[name] is None:
            continue
        if problem := rule.problem(value):
            also = ", or None for the default rule" if defaults[name] is None else ""
            raise ValueError(place.format(name=name, value=value) + problem + also)


def as_mapping(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Returns a configuration's field as a mapping. TRL's parser also takes it as JSON."""
    return dict(json.loads(given) if isinstance(given, str) else given or {})


def read_options(kind: type[Any], given: Mapping[str, Any] | None, owner: str) -> Any:
    """Makes an instance of the options class ``kind`` from a mapping such as `AlignOPSDConfig.method_options`.

    A value must be of its field's type, see `as_type`.

    Args:
        kind: a dataclass whose fields all have defaults.
        given: option names and values.
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
    options = kind(**values)
    check_options(options, place)
    return options


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


def as_type(value: Any, hint: Any, place: str) -> Any:
    """Converts a value to the type of its field.

    A whole number may stand for a float, a float without fraction for a whole number, and text for either: YAML reads
    5e-2, which has no point, as text. Values of other types than plain ones, lists and mappings are not checked.

    Args:
        hint: the field's type, `Annotated` or not.
        place (`str`): field and value, for the message.

    Raises:
        ValueError: if the value can't be converted.
    """
    kinds = _kinds(hint)
    if any(_plain(value, kind) for kind in kinds) or not all(_known(kind) for kind in kinds):
        return value
    if float in kinds or int in kinds:
        number = _number(value)
        if number is not None and (float in kinds or float(number).is_integer()):
            return number if float in kinds else int(number)
    wanted = [_NAMES.get(kind) or _described(kind) for kind in kinds]
    raise ValueError(f"{place} must be {' or '.join(wanted)}")


def _kinds(hint: Any) -> list[Any]:
    """Returns the alternatives of a type."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [kind for part in get_args(hint) for kind in _kinds(part)]
    return [hint]


def _known(kind: Any) -> bool:
    return kind in _NAMES or get_origin(kind) is Literal or (get_origin(kind) or kind) in (list, dict)


def _plain(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return type(value) is (get_origin(kind) or kind)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    return {list: "a list", dict: "a mapping"}[get_origin(kind) or kind]


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
