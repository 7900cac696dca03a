"""Options as dataclasses whose fields carry limits for their values, which pydantic checks.

    strength: Share = option(0.2, "c: weights stay in [1 - c, 1 + c].")

The limits are part of a field's type (`Annotated`), where argument parsers do not see them. `settle` checks all.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Share = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Temperature = Annotated[float, Field(ge=1e-3)]  # logits over a smaller one overflow
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]


def option(default: Any, told: str) -> Any:
    """Returns a dataclass field with its help text."""
    return field(default=default, metadata={"help": told})


def near(word: str, known: Sequence[str]) -> str:
    """Returns a hint at the known word that is most similar, or an empty text."""
    found = difflib.get_close_matches(word, known, 1)
    return f"did you mean {found[0]!r}? " if found else ""


def settle(options: Any, rules: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Checks every field of a dataclass by its type, or by that in ``rules``, and stores the value that `as_type` makes
    of it. Raises `ValueError` with the field, its value and what is allowed."""
    usual = {one.name: one.default for one in fields(options)}
    for name, hint in hints_of(type(options), rules).items():
        value = getattr(options, name)
        if value is None and type(None) not in dict(_parts(hint)):
            raise ValueError(f"{name}=None must have a value; leave it out for the default {usual[name]!r}")
        setattr(options, name, as_type(value, hint, name))


def hints_of(kind: type[Any], rules: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, those of ``rules`` first. Choices of transformers' fields are no free
    text, as their types say: those of an enumeration, and those in a field's metadata."""
    written, found = get_type_hints(kind, include_extras=True), {}
    for one in fields(kind):
        named, parts = one.metadata.get("choices"), [part for part, _ in _parts(written[one.name])]
        choices: Any = Literal[tuple(named)] if named else next(filter(_is_enum, parts), written[one.name])  # ty: ignore[invalid-type-form]
        found[one.name] = choices | None if named and type(None) in parts else choices
    return found | {name: hint for name, hint in rules.items() if name in found}


def _is_enum(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Enum)


def settled(values: Mapping[str, Any], hints: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Returns the values, those with a type converted and checked by `as_type`; ``place`` is for the message."""
    known = {name: as_type(value, hints[name], place + name) for name, value in values.items() if name in hints}
    return {**values, **known}


def as_mapping(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Returns a configuration's field as a mapping. TRL's parser also takes it as JSON."""
    return dict(json.loads(given) if isinstance(given, str) else given or {})


def read_options(kind: type[Any], given: Mapping[str, Any] | None, owner: str) -> Any:
    """Makes an instance of ``kind``, a dataclass whose fields all have defaults, from a mapping such as
    `AlignOPSDConfig.method_options`, whose values `as_type` converts. Raises `ValueError` as that does, and for an
    option that is unknown to the ``owner``, such as ``"method 'rlsd'"``."""
    given, known = given or {}, [one.name for one in fields(kind)]
    if unknown := sorted(set(given) - set(known)):
        options = f"known options: {', '.join(known)}" if known else "it has no options"
        raise ValueError(f"method_options[{unknown[0]!r}] is unknown to {owner}; {options}")
    hints, place = hints_of(kind), f" of {owner}"
    return kind(**{name: as_type(given[name], hints[name], f"method_options[{name!r}]", place) for name in given})


_NAMES: dict[Any, str] = {
    **{bool: "true or false", int: "a whole number", float: "a number", str: "text"},
    **{list: "a list", dict: "a mapping", type(None): "null", Path: "the path of a JSON file"},
}


def as_type(value: Any, hint: Any, name: str, owner: str = "") -> Any:
    """Converts a value to the type of its field and checks its limits.

    A whole number may stand for a float, a float without fraction for a whole number, and text for either: YAML reads
    5e-2, which has no point, as text. JSON may stand for a mapping, and a number of NumPy or PyTorch for Python's. Any
    other value raises `ValueError`, with the name of the field and, where it helps, its owner.
    """
    parts = [*_parts(hint)]
    shown = _SHORT.repr(value).replace("\n", " ")[:200]
    kinds, place = {get_origin(part) or part for part, _ in parts}, f"{name}={shown}{owner}"
    if isinstance(value, str) and dict in kinds and (str in kinds or value.lstrip().startswith("{")):
        value = _from_json(value, place)
    elif isinstance(value, os.PathLike) and str in kinds and dict not in kinds:
        value = os.fspath(value)
    elif getattr(value, "shape", None) == ():
        value = value.item()
    named = any(map(_is_enum, kinds)) and not isinstance(value, str | Enum | None)
    # pydantic takes b"1" as 1, 1.0 as true, and a set, which has no order, as a list
    alien = isinstance(value, bytes | bytearray | set) or (isinstance(value, float) and not kinds & {float, int, Any})
    keyed = isinstance(value, Mapping) and dict in kinds and not all(isinstance(key, str) for key in value)
    if named or alien or keyed:
        raise ValueError(place + _problem("enum" if named else "", parts))
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError(f"{place} has a letter that no file can hold; write it without")
    try:
        # true is no number, 1 not true
        found = _adapter(hint).validate_python(value, strict=isinstance(value, int) or None)
    except ValidationError as error:
        raise ValueError(place + _problem(error.errors()[0]["type"], parts)) from None
    except OSError as error:
        raise ValueError(f"{place}: {error.strerror}; name a file") from error
    if isinstance(found, int) and abs(found) >= 2**63:
        raise ValueError(f"{place} is larger than any machine's whole number")
    if isinstance(value, int) and isinstance(found, float):
        return value  # 1 may stand where 1.0 may, and is shorter to read
    return str(found) if isinstance(found, Path) else found


_SHORT = reprlib.Repr()  # whose work is bounded, also for nested lists, and which takes a value whose ``repr`` raises
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200


def _from_json(text: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_once_each, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is no JSON ({error}); write a mapping, such as '{{\"name\": 1}}'") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place} must be a JSON mapping, such as '{{\"name\": 1}}'")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(f"{text} is no finite number")
    return found


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


def _problem(kind: str, parts: Sequence[tuple[Any, dict[str, Any]]]) -> str:
    """Returns the end of a message: what a value of this kind of pydantic's errors must be."""
    if kind == "finite_number":
        return " must be a finite number"
    choices = [repr(choice) for part, _ in parts if get_origin(part) is Literal for choice in get_args(part)]
    choices += [repr(choice.value) for part, _ in parts if _is_enum(part) for choice in part]
    limits = {name: limit for _, own in parts for name, limit in own.items()}
    if kind in ("literal_error", "enum"):
        told = f": choose one of {', '.join(choices)}"
    elif kind.startswith(("greater_than", "less_than")):
        told = _limited(**limits)
    else:
        kinds = [get_origin(part) or part for part, _ in parts]
        kinds = [one for one in kinds if one is not str or dict not in kinds]  # text is a mapping's JSON
        return f" must be {' or '.join(_NAMES.get(one, getattr(one, '__name__', str(one))) for one in kinds)}"
    return told + (", or None for the default rule" if type(None) in dict(parts) else "")


def _limited(ge: float | None = None, gt: float | None = None, le: float | None = None, lt: float | None = None) -> str:
    if le is not None or lt is not None:
        low = f"({gt:g}" if ge is None else f"[{ge:g}"
        return f" must lie in {low}, {lt:g})" if le is None else f" must lie in {low}, {le:g}]"
    if gt is not None:
        return f" must be greater than {gt:g}"
    return f" must be {ge:g} or more" if ge else " must not be negative"


def _parts(hint: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the alternatives of a type, each with its limits by pydantic's names."""
    if get_origin(hint) is Annotated:
        limits = [asdict(limit) for limit in getattr(hint.__metadata__[0], "metadata", ())]
        yield get_args(hint)[0], {name: number for one in limits for name, number in one.items()}
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    else:
        yield hint, {}


_START = [os.getcwd()]


def whole_path(path: str | os.PathLike[str]) -> str:
    """Returns a user's path absolute, and remembers its starting folder, from which an environment may move."""
    _START[0] = os.getcwd()
    return os.path.abspath(path)


def path_as_given(path: str | os.PathLike[str]) -> str:
    """Returns a path for messages and files, relative if below the starting folder: these then name no home folder."""
    below = os.path.join(path, "").startswith(os.path.join(_START[0], ""))
    return os.path.relpath(path, _START[0]) if below else str(path)
