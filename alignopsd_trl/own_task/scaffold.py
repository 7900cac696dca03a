"""Writes a new task from templates; its files run as they stand."""

from __future__ import annotations

import re
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from alignopsd_trl.common.files import replacing
from alignopsd_trl.common.offline import INSTALL, OFFLINE_MODEL, has_smollm2
from alignopsd_trl.environments.shipped import SHIPPED
from alignopsd_trl.own_task.options import FRESH
from alignopsd_trl.skills.schema import NAME as NAME_RULE

TEMPLATES = Path(__file__).parent / "templates"
NAME, CLASS, ADDRESS = "my_task", "MyTask", "http://localhost:8000"
"""Placeholders in the templates for the task's name, its class and the server's address."""

BESIDE = ("train", "policy", "conftest")
"""Modules and folders beside a task's own."""

POLICIES = {
    OFFLINE_MODEL: "SmolLM2-135M (--model tiny: a fresh model, for a smoke test of a minute)",
    FRESH: f"a fresh model of half a million parameters ({INSTALL} for SmolLM2-135M)",
}
"""What a first policy starts from, and how to have the other one."""


def write_task(folder: str | Path, kind: str = "environment", address: str = "", model: str | None = None) -> str:
    """Writes a task into a folder that must be new or empty.

    Args:
        folder: its name becomes the task's.
        kind: the folder of templates: ``environment``, ``tools``, ``agent`` or ``openenv``.
        address: the address of an OpenEnv server.
        model: what the first policy starts from: ``smollm2`` or ``tiny``; by default `smollm2` if it is installed.

    Returns:
        The first policy and the commands to run next, as text.

    Raises:
        ValueError: if the folder is taken, or its name can't be a module's.
    """
    folder = Path(folder).expanduser()
    name = folder.resolve().name
    _check(folder, name)
    model = model or (OFFLINE_MODEL if has_smollm2() else FRESH)
    kinds = ("shared", kind, OFFLINE_MODEL) if model == OFFLINE_MODEL else ("shared", kind)
    with replacing(folder) as partial:
        for file in (one for part in kinds for one in (TEMPLATES / part).iterdir()):  # the later overwrites
            if file.is_file():
                _write(file, partial, name, address)
    following = (f"cd {folder}", f"alignopsd check {name}", "python train.py")
    return "\n  ".join([f"{folder} is written, for {POLICIES[model]}. Next:", *following])


def _check(folder: Path, name: str) -> None:
    if not re.fullmatch(NAME_RULE, name) or iskeyword(name):
        rule = "small letters, digits and underscores, a letter first, no word of Python"
        raise ValueError(f"{name!r} must be a module's name: {rule}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already and not empty; choose another folder")
    used = {word for file in TEMPLATES.rglob("*.py") for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    if name in BESIDE or _class(name) in used - {CLASS}:
        raise ValueError(f"{name!r} is a name that the task's files use for something else; choose another one")
    if name in SHIPPED or find_spec(name) is not None:
        raise ValueError(f"{name!r} is the name of a module that is installed; choose another one")


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _write(file: Path, folder: Path, name: str, address: str) -> None:
    """Writes a file of the templates under the task's name."""
    words = {NAME: name, CLASS: _class(name), ADDRESS: address or ADDRESS}
    text = file.read_text(encoding="utf-8")
    for word, own in words.items():
        text = text.replace(word, own)
    (folder / file.name.replace(NAME, name)).write_text(text, encoding="utf-8")
