"""Recognises what a user passes as ``environment_factory``: an environment of ours, or a class of TRL's convention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.adapters.adapted import AdaptedEnvironment
from alignopsd_trl.environments.adapters.tools import ToolEnvironment
from alignopsd_trl.environments.base import TextEnvironment
from alignopsd_trl.environments.declared import check_environment, name_of
from alignopsd_trl.environments.generators import kept


def as_environment(factory: Any, tools: Sequence[Callable] = (), **options: Any) -> Any:
    """Makes a factory of environments from either convention.

    Args:
        factory: a factory of `TextEnvironment`s is returned unchanged. One of TRL's classes, a dict of them, or `None`
            with ``tools`` becomes a [`ToolEnvironment`].
        tools: functions that TRL's classes get beside their own.
        options: of [`ToolEnvironment`], unless ``factory`` is one already.

    Raises:
        TypeError: if ``factory`` is of neither convention.
    """
    if isinstance(factory, AdaptedEnvironment):
        return _adjusted(factory, tools, options)
    if isinstance(factory, Mapping) or (factory is None and tools):
        return ToolEnvironment(factory, tools, **options)
    if not callable(factory):
        raise TypeError(
            "environment_factory must be a callable without arguments that makes an environment, or a dict of such, "
            f"got {factory!r}"
        )
    kind = _kind(factory)
    if kind is not None and issubclass(kind, AdaptedEnvironment):
        return _adjusted(factory(), tools, options)
    if kind is not None and not _is_ours(kind):
        return ToolEnvironment(factory, tools, **options)
    if tools:
        raise TypeError(f"tools={[name_of(tool) for tool in tools]} need one of TRL's tool classes, got {factory!r}")
    if kind is not None:
        check_environment(kind)
    return factory


def _adjusted(made: AdaptedEnvironment, tools: Sequence[Callable], options: Mapping[str, Any]) -> AdaptedEnvironment:
    """Adds options from the run and the dataset; those that the user set stay."""
    own = made.options
    if not isinstance(made, ToolEnvironment):
        if tools:
            raise TypeError(f"tools={[name_of(tool) for tool in tools]} need one of TRL's tool classes, got {made!r}")
        return made
    added = {name: options[name] for name in ("seeded", "max_tool_calling_iterations") if options.get(name)}
    changed = {name: value for name, value in added.items() if not own[name]}
    if tools:
        changed["tools"] = (*own["tools"], *tools)
    return made.with_options(**changed) if changed else made


def _kind(factory: Callable) -> type | None:
    """Returns the class that a factory makes; `None` for a factory with its own batch. Calls functions only."""
    if hasattr(factory, "batch"):
        return None
    inner = factory
    while isinstance(inner, functools.partial):
        inner = inner.func
    if isinstance(inner, type):
        return inner
    with kept():
        made = factory()
        if _is_ours(type(made)):
            made.close()
        return type(made)


def _is_ours(kind: type) -> bool:
    return issubclass(kind, TextEnvironment) or all(callable(getattr(kind, name, None)) for name in ("step", "project"))


def check_rows(dataset: Any, name: str = "train_dataset") -> None:
    """Refuses a dataset that a tool class can't play.

    Raises:
        ValueError: names the column and the remedy.
    """
    pictures = {"image", "images"} & set(dataset.column_names or ())
    if pictures:
        raise ValueError(
            f"{name} has a column {min(pictures)!r}, but prompts are text alone; remove it, or train with GRPOTrainer"
        )
    if "prompt" not in (dataset.column_names or ()) or not hasattr(dataset, "__len__"):
        return
    wrong = next(((row, prompt) for row, prompt in enumerate(dataset["prompt"]) if not _is_prompt(prompt)), None)
    if wrong is not None:
        raise ValueError(
            f"{name}: row {wrong[0]} of column 'prompt' is {wrong[1]!r:.120}; give a text, or a list of messages with "
            "role and content (rows of ShareGPT have from and value: rename these)"
        )


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return True
    messages = isinstance(value, list) and bool(value) and all(isinstance(message, Mapping) for message in value)
    return messages and all(isinstance(message.get("role"), str) for message in value)
