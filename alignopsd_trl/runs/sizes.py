"""The sizes that a policy was trained with, and its evaluations' temperature, in a small file beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alignopsd_trl.common.files import whole_json, write_json
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.rollout.options import PlayOptions

SIZES_FILE = "recipe.json"
_OWN: dict[str, Any] = {"max_completion_length": 512, "skill_tokens": None, "eval_temperature": 0.4}
USUAL: dict[str, Any] = dict.fromkeys(("max_prompt_length", *_OWN)) | _OWN | PlayOptions.usual()
"""Sizes by their names in [`AlignOPSDConfig`], with the defaults where neither a user nor the policy sets them."""


def write_sizes(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes the sizes among these settings beside a policy's weights; skips those left to their defaults."""
    write_json(folder / SIZES_FILE, {name: settings[name] for name in USUAL if settings.get(name)})


def read_sizes(model: str) -> dict[str, Any]:
    """Reads the sizes beside the weights of a policy, given by name or path; empty if there are none."""
    content = whole_json(Path(resolve_model(model)).expanduser() / SIZES_FILE) or {}
    return {name: content[name] for name in USUAL if content.get(name)}


def choose_sizes(
    model: str, named: Mapping[str, Any], usual: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], str]:
    """Returns the sizes to play a policy with, and the source of each: those ``named`` on a command line, else the
    policy's own, else ``usual`` ones, else `USUAL`."""
    own, last = read_sizes(model), USUAL | dict(usual or {})
    taken: dict[str, Any] = {}
    told = []
    for source, sizes in (("as asked", named), (f"as the policy's {SIZES_FILE} says", own), ("by default", last)):
        new = {name: sizes[name] for name in USUAL if name in sizes and name not in taken}
        taken |= new
        shown = [f"{name}={value}" for name, value in new.items() if value != USUAL[name] or isinstance(value, int)]
        told += [f"{', '.join(shown)} {source}"] if shown else []
    return taken, "; ".join(told)
