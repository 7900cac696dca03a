"""The benchmarks that come with the package: each folder with a ``shipped.toml``, which declares all that other
packages need to know."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ActionGrammar:
    """The grammar of a benchmark's actions, for a filter that compares two of them.

    Args:
        pattern (`str`): matches an action; its groups are the operation and the argument.
        same_argument (`tuple[str, ...]`): operations that are the same only if their arguments are.
    """

    pattern: str
    same_argument: tuple[str, ...]

    def key(self, action: str) -> tuple[str, str] | None:
        """Returns a key that compatible actions share; `None` for text that is no action."""
        match = re.fullmatch(self.pattern, action.strip())
        if match is None or not match[2].strip():
            return None
        return match[1], match[2].strip() if match[1] in self.same_argument else ""


@dataclass(frozen=True)
class Shipped:
    """A benchmark. Its code is the folder of its name, whose ``__main__`` plays it by hand.

    Args:
        title (`str`): in tables and figures.
        averages (`Mapping[str, str]`): averages that its tables show, and their headings.
        skill_prefix (`str`): of identifiers in its skill bank, as in ``web-g01``.
        preset (`Mapping[str, Any]`): settings of the paper's protocol.
        released (`Mapping[str, Mapping[str, Any]]`): backbone -> settings of the published launcher that differ.
        variants (`Mapping[str, Mapping[str, Any]]`): module name of each suite for small policies -> settings of its
            recipe.
        action_grammar (`ActionGrammar`, *optional*): makes the benchmark's name a value of ``action_filter``.
        embedded (`Mapping[str, Any]`, *optional*): what the description of its suite says where it plays data of this
            project.
        needs (`str`, *optional*): what to install or download for the benchmark's own data.
    """

    title: str
    averages: Mapping[str, str]
    skill_prefix: str
    preset: Mapping[str, Any]
    released: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Mapping[str, Any]]
    action_grammar: ActionGrammar | None = None
    embedded: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""

    @classmethod
    def read(cls, file: Path) -> Shipped:
        """Reads a ``shipped.toml``."""
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        if grammar := content.get("action_grammar"):
            content["action_grammar"] = ActionGrammar(grammar["pattern"], tuple(grammar["same_argument"]))
        return cls(**content)


BENCHMARKS = {file.parent.name: Shipped.read(file) for file in sorted(Path(__file__).parent.glob("*/shipped.toml"))}


def plays_embedded(suite: str, description: Mapping[str, Any]) -> bool:
    """Returns whether a suite plays data of this project, which its results may not pass off as a benchmark's.

    Args:
        suite: its name.
        description: its own, or that of a saved result.
    """
    if suite not in BENCHMARKS:
        return suite in SHIPPED
    embedded = BENCHMARKS[suite].embedded
    return bool(embedded) and all(description.get(name) == value for name, value in embedded.items())


SHIPPED = tuple(name for benchmark, shipped in BENCHMARKS.items() for name in (benchmark, *shipped.variants))
"""Suites that `alignopsd_trl.environments.load` knows by name."""

ACTION_GRAMMARS = {name: shipped.action_grammar for name, shipped in BENCHMARKS.items() if shipped.action_grammar}
"""The grammar of each benchmark that has one."""
