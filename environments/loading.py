"""Loads suites by name: the shipped ones, and the user's modules."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from alignopsd_trl.environments.base import Suite, TextEnvironment
from alignopsd_trl.environments.declared import check_environment
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.environments.shipped import BENCHMARKS, SHIPPED, plays_embedded

if TYPE_CHECKING:
    from datasets import Dataset


def load(name: str, **options: Any) -> Suite:
    """Loads the suite of a shipped environment, such as ``webshop`` or ``webshop_tiny``, or of a user's module with a
    function ``suite(**options)``.

    Its panel ``NAME/COUNT`` is a fixed draw of ``COUNT`` tasks of the panel ``NAME``.

    Args:
        name (`str`): one of `SHIPPED`, or the name of a module, which may lie in the current folder.
        options: passed to the module's function.

    Raises:
        ValueError: if there is no such environment, the module has no such function, or it returns no `Suite`.
        TypeError: if its environment has no `reset`, `step` or `project`.
    """
    module = find_module(f"alignopsd_trl.environments.{name}" if name in SHIPPED else name)
    if module is None:
        close = difflib.get_close_matches(name, SHIPPED, 1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"environment={name!r} is unknown; {meant}use one of {', '.join(SHIPPED)}, or the name of a module of "
            "yours with a function suite(**options) (it must be importable from where you run)"
        )
    if not callable(getattr(module, "suite", None)):
        place = getattr(module, "__file__", None) or "a folder without __init__.py"
        raise ValueError(f"environment {name!r} is the module {place}, which has no function suite(**options)")
    try:
        suite = module.suite(**options)
    except _OF_CODE as error:
        raise _failed(f"environment {name!r}: suite(**options) of {module.__file__}", error) from error
    asked: dict[str, str] = {}
    if not isinstance(suite, Suite):
        raise ValueError(
            f"environment {name!r}: suite(**options) of {module.__file__} returned {type(suite).__name__}; "
            "it must return an environments.Suite"
        )

    if isinstance(suite.factory, type) and issubclass(suite.factory, TextEnvironment):
        check_environment(suite.factory)

    def panel(wanted: str) -> TaskPanel:
        made = drawn_panel(suite.panel, wanted)
        if not isinstance(made, TaskPanel):
            raise ValueError(
                f"environment {name!r}: panel({wanted!r}) returned {type(made).__name__}; it must return a TaskPanel, "
                "as TaskPanel.of(name, split, rows) makes one"
            )
        asked[made.name] = wanted
        return made

    with contextlib.suppress(TypeError):  # a factory that can't be a key of a weak dictionary is not recorded
        _LOADED[suite.factory] = Loaded(name, options, asked)
    return replace(suite, panel=panel)


def lacks_data(name: str, panel: str, options: Mapping[str, Any]) -> str | None:
    """Returns what a benchmark lacks to play its own data, and what to install or download; `None` if nothing."""
    needs = f"; {BENCHMARKS[name].needs}" if name in BENCHMARKS else ""
    try:
        suite = load(name, **options)
        if plays_embedded(suite.name, suite.description):
            return f"it would play this project's{needs}"
        suite.panel(panel)
    except (ValueError, OSError, ImportError) as error:
        return f"{error}{needs}"
    return None


def drawn_panel(panel: Callable[[str], TaskPanel], wanted: str) -> TaskPanel:
    """Returns a panel by its name, or of ``NAME/COUNT`` a draw."""
    whole, _, count = wanted.rpartition("/")
    if not whole or not count.isdecimal():
        return panel(wanted)
    made = panel(whole)
    return made.drawn(int(count)) if isinstance(made, TaskPanel) else made


def sketched(suite: Suite, made: int) -> Suite:
    """Returns a suite for a plan, whose tasks beyond the first ``made`` may be placeholders; as it is without any."""
    if (rows := suite.sketch) is None:
        return suite

    def tasks(split: str) -> Dataset:
        from datasets import Dataset

        return Dataset.from_list([dict(row) for row in rows(split, made)])

    panel = partial(drawn_panel, lambda name: TaskPanel.of(suite.name, name, rows(name, 0)))
    return replace(suite, tasks=tasks, panel=panel)


@dataclass(frozen=True)
class Loaded:
    """The name and options with which `load` was called, and the requested name of each panel."""

    name: str
    options: Mapping[str, Any]
    panels: Mapping[str, str]


_LOADED: WeakKeyDictionary[Callable[[], TextEnvironment], Loaded] = WeakKeyDictionary()


def loaded_as(factory: Callable[[], TextEnvironment]) -> Loaded | None:
    """Returns how the suite of a factory was loaded; `None` if it was not."""
    try:
        return _LOADED.get(factory)
    except TypeError:
        return None


def importable(spec: str) -> str:
    """Returns the module name of a module that is given by name, file or folder; the parent folder becomes a place to
    import from.

    Raises:
        ValueError: if there is no such file.
    """
    path = Path(spec).expanduser()
    if path.is_dir() and (path / f"{path.resolve().name}.py").is_file():
        path = path / f"{path.resolve().name}.py"
    if path.suffix != ".py":
        if os.sep in spec:
            raise ValueError(f"{spec!r}: there is no such file, and no folder with a module of its own name in it")
        return spec
    if not path.is_file():
        raise ValueError(f"{spec!r}: there is no such file")
    if not path.stem.isidentifier():
        raise ValueError(f"{spec!r}: {path.stem!r} is no name of a module; use letters, digits and underscores")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return path.stem


def find_module(name: str) -> ModuleType | None:
    """Finds a module by its name; `None` if there is none.

    Raises:
        ValueError: for an error in its code.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # a launcher puts the script's folder there instead
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
    except _OF_CODE as error:
        raise _failed(f"importing {name!r}", error) from error


_OF_CODE = (SyntaxError, LookupError, AttributeError, NameError, ArithmeticError, AssertionError, SystemExit)


def _failed(what: str, error: BaseException) -> ValueError:
    """Says where the user's code failed; a `SyntaxError` already does."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({line.filename}, line {line.lineno})"
    return ValueError(f"{what} failed with {type(error).__name__}: {error}{place}; mend it there")
