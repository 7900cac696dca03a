"""Reads the names of a recipe's flags from the sources of their classes, because importing those takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from alignopsd_trl.options import near

SOURCES = (
    ("alignopsd_trl", "launch/arguments.py", "RecipeArguments"),
    ("alignopsd_trl", "config.py", "AlignOPSDConfig"),
    ("alignopsd_trl", "methods/align_opsd/options.py", "AlignOPSDOptions"),
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("trl", "trainer/model_config.py", "ModelConfig"),
    ("transformers", "training_args.py", "TrainingArguments"),
)
"""Package, file and class; tests compare the names with those of the parser."""

BESIDE = ("all", "config", "model", "help", "debug")


@cache
def flag_names() -> tuple[str, ...]:
    """Returns every argument of a recipe, without dashes."""
    return tuple(sorted({name for source in SOURCES for name in _fields(*source)}))


def _fields(package: str, file: str, name: str) -> list[str]:
    """Returns the annotated names in a class's body."""
    found = find_spec(package)
    assert found is not None and found.submodule_search_locations, f"{package} is no installed package"
    folder = found.submodule_search_locations[0]
    tree = ast.parse((Path(folder) / file).read_text(encoding="utf-8"))
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return [node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]


def check_flags(argv: Sequence[str]) -> None:
    """Raises `ValueError` for a flag that no recipe has, with the nearest name."""
    known = (*flag_names(), *BESIDE)
    for word in argv:
        given = word.partition("=")[0]
        name = given[2:].replace("-", "_")
        if given.startswith("--") and name not in known and name.removeprefix("no_") not in flag_names():
            hint = near(given, [f"--{one}" for one in known])
            raise ValueError(f"{given} is unknown; {hint}--help all shows every argument")
