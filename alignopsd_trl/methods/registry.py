"""Finds methods by name, in the package and in the user's modules."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, TypeVar

from alignopsd_trl.common.options import near
from alignopsd_trl.environments.loading import find_module

if TYPE_CHECKING:
    from alignopsd_trl.methods.base import Method

Kind = TypeVar("Kind", bound="type[Method]")

_REGISTRY: dict[str, type[Method]] = {}


def register(method: Kind) -> Kind:
    """Registers a method class by its ``name``; used as a decorator.

    A class that is defined again, as when a notebook's cell is run twice, replaces its earlier definition.

    Raises:
        ValueError: if it has no name, or if the name is taken by another class.
    """
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{_place(method)} needs a name to be registered by: add a line such as  name = 'my_method'")
    taken = _REGISTRY.get(name, method)
    if _place(taken) != _place(method):
        raise ValueError(f"method name {name!r} is taken by {_place(taken)}; give {_place(method)} another name")
    _REGISTRY[name] = method
    return method


def _place(method: type[Method]) -> str:
    return f"{method.__module__}.{method.__qualname__}"


def method_names() -> list[str]:
    """Returns all registered names, sorted: the package's own, and those of modules that were imported."""
    _discover()
    return sorted(_REGISTRY)


def get_method(name: str) -> type[Method]:
    """Returns a method class by its name or by the module that registers it.

    Args:
        name: a registered name such as ``"grpo"``; or a module that registers one method, such as
            ``"my_package.my_method"``, which is then imported, from the current folder too; or ``"module:name"`` for a
            module that registers several.

    Raises:
        ValueError: for an unknown name, with the known ones; for a module that registers no method, or several.
    """
    _discover()
    return _REGISTRY[name] if name in _REGISTRY else _from_module(name)


def _discover() -> None:
    package = import_module("alignopsd_trl.methods")
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)


def _from_module(name: str) -> type[Method]:
    if not isinstance(name, str):
        raise ValueError(f"method={name!r} must be text; in YAML write it in quotes")
    module, _, chosen = name.partition(":")
    if find_module(module) is None:
        known = sorted(_REGISTRY)
        raise ValueError(
            f"method={name!r} is unknown; {near(name, known)}choose one of {', '.join(known)}, or name the module that "
            "registers your own, such as my_package.my_method (it must be importable from where you run)"
        )
    own = {
        kind.name: kind for kind in _REGISTRY.values() if f"{kind.__module__}.".startswith(f"{module}.")
    }  # of the module or, if it is a package, of its modules
    if chosen in own:
        return own[chosen]
    if len(own) == 1 and not chosen:
        return next(iter(own.values()))
    if not own:
        raise ValueError(f"method={name!r}: module {module!r} registers no method; decorate its class with @register")
    raise ValueError(
        f"method={name!r}: module {module!r} registers {', '.join(sorted(own))}; choose one, as {module}:{min(own)}"
    )
