"""Annotations of parameters and fields: written out for a policy, and checked against its arguments."""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from collections import abc
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

_UNIONS = (typing.Union, types.UnionType)
_SCALARS = {bool: bool, int: int, float: (int, float), str: str, type(None): type(None)}
_OF_JSON = {"boolean": bool, "integer": int, "number": float, "string": str, "null": type(None), "object": dict}
_LITERAL: Any = typing.Literal
_LISTS = (list, tuple, set, frozenset, abc.Sequence, abc.Iterable, abc.Collection)


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotated type. A type that JSON does not have takes anything."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return fits(value, inner[0])
    if origin in _UNIONS:
        return any(fits(value, kind) for kind in inner)
    if origin is typing.Literal:
        return value in inner
    kind = origin or annotation
    if kind in _SCALARS:
        return isinstance(value, _SCALARS[kind]) and (kind is bool or not isinstance(value, bool))
    if kind in (dict, abc.Mapping):
        return isinstance(value, Mapping) and (len(inner) < 2 or all(fits(part, inner[1]) for part in value.values()))
    if kind in _LISTS:
        alike = inner[0] if len({*inner} - {...}) == 1 else Any
        return isinstance(value, list | tuple | set) and all(fits(part, alike) for part in value)
    return True


def check_arguments(name: str, parameters: Mapping[str, Parameter], arguments: Mapping[str, Any]) -> None:
    """Checks the arguments of a call by the annotations of a tool's parameters. A default always passes.

    Raises:
        ValueError: names the tool, the argument, its value and its type.
    """
    for parameter in (parameters[name] for name in arguments if name in parameters):
        value, wanted = arguments[parameter.name], parameter.annotation
        plain = parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if plain and wanted is not Parameter.empty and value != parameter.default and not fits(value, wanted):
            raise ValueError(f"{name}: {parameter.name}={value!r:.80} is not of type {shown_type(wanted)}")


def shown_type(annotation: Any) -> str:
    """Writes an annotation for a policy, with choices written out: ``"left" or "right"``."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return shown_type(inner[0])
    if origin is typing.Literal:
        return " or ".join(map(json.dumps, inner))
    if origin in _UNIONS:
        return " or ".join(map(shown_type, inner))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(json.dumps(choice.value) for choice in annotation)
    if origin is not None and inner:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(map(shown_type, inner))}]"
    return "null" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def of_schema(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """The annotation that a JSON schema stands for.

    Args:
        named: what its references lead to, its ``$defs``.
    """
    if "$ref" in schema:
        return of_schema(named.get(schema["$ref"].rpartition("/")[2], {}), named)
    if choices := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return _LITERAL[tuple(choices)]
    if either := schema.get("anyOf") or schema.get("oneOf"):
        return typing.Union[tuple(of_schema(kind, named) for kind in either)]  # noqa: UP007
    if schema.get("type") == "array":
        return types.GenericAlias(list, (of_schema(schema.get("items") or {}, named),))
    return _OF_JSON.get(schema.get("type"), Any)


def is_address(value: Any) -> bool:
    """Whether `str` of a value, or of one inside of it, would show only a memory address, as for an image."""
    if isinstance(value, Mapping):
        return any(map(is_address, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_address, value))
    return not isinstance(value, str) and re.search(f" at 0x0*{id(value):x}>", str(value).lower()) is not None
