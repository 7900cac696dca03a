"""Writes a new task from templates; its files run as they stand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Container, Mapping, Sequence
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from types import MappingProxyType

from alignopsd_trl.commands.own_task.dataset import asked_dataset
from alignopsd_trl.commands.own_task.hub_model import PROMPT, TURNS, recipe_changes
from alignopsd_trl.commands.own_task.options import FRESH, PROGRAMS, SMALL
from alignopsd_trl.commands.own_task.programs import asked_program, asked_taskset
from alignopsd_trl.commands.own_task.worlds import HELD_OUT, ask
from alignopsd_trl.common.files import replacing
from alignopsd_trl.common.literals import with_values
from alignopsd_trl.common.offline import INSTALL, OFFLINE_MODEL, has_smollm2
from alignopsd_trl.environments.shipped import SHIPPED
from alignopsd_trl.skills.schema import NAME as NAME_RULE

TEMPLATES = Path(__file__).parent / "templates"
NAME, CLASS, LABEL = "my_task", "MyTask", '"my_world"'
"""Placeholders in the templates for the task's name, its class and, in a skill bank, what was asked for. All else that
a user gives is a value that the task's module assigns."""

WORLDS = ("textarena", "textworld", "scienceworld", "gymnasium", "reasoning_gym")
"""Kinds of templates that play a world of somebody else's; each is the name of an option and of a package."""

ROOMY = {
    '"max_prompt_length": 512': '"max_prompt_length": 1024,\n    "skill_tokens": 256',
    '"max_completion_length": 64': '"max_completion_length": 96',
    '"panel_limit": 40,': f'"panel_limit": 40,{HELD_OUT}',
    "minutes=6": "minutes=20",
    "config=START)": "config=START, episodes=256)",
}
"""What a recipe gives a world whose texts may be long and whose episodes may be slow."""

AS_IT_COMES = {"    prompt = ShortPrompt()\n": "", "PlainEnvironment, ShortPrompt, Step": "PlainEnvironment, Step"}
"""In the maze for a model that nobody taught its form: the plain prompt, which asks for it."""

BESIDE = ("train", "policy", "conftest")
"""Modules and folders beside a task's own."""

POLICIES = {
    OFFLINE_MODEL: "SmolLM2-135M (--model tiny: a fresh model, for a smoke test of a minute)",
    FRESH: f"a fresh model of half a million parameters (--model {OFFLINE_MODEL}: SmolLM2-135M, after {INSTALL})",
}
"""What a first policy starts from, and how to have the other one."""


def write_task(
    folder: str | Path,
    kind: str = "environment",
    asked: str = "",
    model: str | None = None,
    functions: Mapping[str, str] = MappingProxyType({}),
    gpu_gib: float | None = None,
) -> str:
    """Writes a task into a folder that must be new or empty, and returns the commands to run next, as text. Raises
    `ValueError` if the folder is taken, its name can't be a module's, or the world can't be played here.

    Args:
        folder: its name becomes the task's.
        kind: the folder of templates: ``environment``, ``tools``, ``agent``, ``openenv``, ``dataset``,
            ``program``, ``verifiers`` or one of `WORLDS`.
        asked, functions: as `alignopsd_trl.commands.own_task.worlds.ask` takes them; of ``dataset`` its file, folder or
            id; of ``program`` one of `PROGRAMS`; of ``verifiers`` a taskset.
        model: what the first policy starts from: ``smollm2`` or ``tiny``, by default `smollm2` if it is installed; or
            the folder or id of a model that is trained as it comes.
        gpu_gib: the GPU that such a model is trained on; by default this machine's.
    """
    folder = Path(folder).expanduser()
    name = folder.resolve().name
    model = model or (OFFLINE_MODEL if has_smollm2() else FRESH)
    if kind == "dataset" and model == FRESH:
        raise ValueError(f"--dataset needs a model that knows something: --model with a folder or an id, or {INSTALL}")
    ships = kind == "program" and asked != SMALL
    if ships and model in POLICIES:
        raise ValueError(f"--program {asked} calls tools: name a model that can with --model, a folder or an id")
    as_it_comes = model not in POLICIES or kind == "dataset"
    if gpu_gib is not None and not as_it_comes:
        raise ValueError(f"--gpu_gib {gpu_gib:g}: {model} learns on two cores; leave it out, or name another --model")
    own_parts = ["hub"] if as_it_comes else [model] if model == OFFLINE_MODEL else []
    home = f"{SMALL}_{kind}" if asked == SMALL and kind == "program" else kind
    parts = [TEMPLATES / one for one in ("shared", home, *own_parts)]
    _check(folder, name, parts)
    askers = {"dataset": asked_dataset, "program": asked_program, "verifiers": asked_taskset}
    world = askers[kind](asked) if kind in askers else ask(kind, asked, functions)
    if world.values.get("FORMAT") == "native" and model in POLICIES:
        raise ValueError(f"--verifiers {asked} calls tools: name a model that can with --model; or add harness=null")
    changes = {**(ROOMY if kind in WORLDS else {}), **world.changes}
    told, planned = POLICIES.get(model, ""), ""
    if as_it_comes:
        prompt = PROGRAMS[asked] if kind == "program" else PROMPT
        place = str(Path(model).expanduser().resolve()) if Path(model).expanduser().is_dir() else model
        own, told = recipe_changes(place, gpu_gib, world.values.get("max_turns", TURNS), prompt)
        own |= AS_IT_COMES if kind == "environment" else {}
        changes, planned = own | changes, " --plan" if gpu_gib is None else f" --plan --gpu_gib {gpu_gib:g}"
    names = {NAME: name, CLASS: _class(name), LABEL: json.dumps(asked)}
    parts += [own] if world.part and (own := TEMPLATES / kind / world.part).is_dir() else []
    with replacing(folder) as partial:
        for file in (one for part in parts for one in part.iterdir()):  # the later overwrites
            if file.is_file():
                text = _written(file.read_text(encoding="utf-8"), changes, names)
                text = with_values(text, world.values) if file.name == f"{NAME}.py" else text
                (partial / file.name.replace(NAME, name)).write_text(text, encoding="utf-8")
        for place, file in world.files.items():
            path = partial / place.replace(NAME, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(file.read_bytes() if isinstance(file, Path) else file.encode())
    following = [f"cd {shlex.quote(str(folder))}", f"alignopsd check {name}", "python train.py"]
    following[2:2] = [f"python train.py{planned}"] if planned else []
    return "\n  ".join([f"{folder} is written, for {told}. Next:", *following])


def _check(folder: Path, name: str, parts: Sequence[Path]) -> None:
    files = [file for part in parts for file in part.rglob("*.py")]
    used = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))} - {CLASS}
    if why := _unfit(name, used):
        close = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").lstrip("0123456789_")
        offered = next(one for one in (close, f"{close}_task".lstrip("_"), "my_own_task") if not _unfit(one, used))
        raise ValueError(f"{name!r} {why}; choose another name, such as {offered}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already and not empty; choose another folder")


def _unfit(name: str, used: Container[str]) -> str:
    """Says why a name can't be a task's whose files use other names; empty if it can."""
    if not re.fullmatch(NAME_RULE, name) or iskeyword(name):
        return "must be a module's name: small letters, digits and underscores, a letter first, no word of Python"
    if name in BESIDE or _class(name) in used:
        return "is a name that the task's files use for something else"
    return "is the name of a module that is installed" if name in SHIPPED or find_spec(name) is not None else ""


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _written(text: str, changes: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Returns a text of the templates with changes, one after another, and names, each where the template has it."""
    for old, new in changes.items():
        text = text.replace(old, new)
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)
