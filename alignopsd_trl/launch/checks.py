"""What can be seen to be wrong with a command line in a second, before PyTorch is imported."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.base import SHIPPED
from alignopsd_trl.launch.early import early_value, read_yaml
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.launch.presets import own_preset, preset
from alignopsd_trl.policy.shipped import SHIPPED_MODELS

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PACKAGE = Path(__file__).parents[1]
_COUNTS = ("tasks_per_round", "num_generations", "updates_per_round", "rounds", "panel_limit", "max_turns")


def check_early(name: str, argv: Sequence[str], own: Mapping[str, Any] | None = None) -> None:
    """Raises for what no run could start with.

    Raises:
        ValueError: names the flag, its value and the remedy.
    """
    with setup():
        kind = early_value(argv, "preset", str, "paper")
        defaults = preset(name, kind) if own is None else own_preset(own, name, kind)

        def value(flag: str, fallback: Any = None) -> Any:
            return early_value(argv, flag, str, defaults.get(flag, fallback))

        if config := early_value(argv, "config", str, None):
            read_yaml(config)
        for flag in _COUNTS:
            _count(flag, value(flag))
        _method(str(value("method", "align_opsd")))
        _environment(str(value("environment", "webshop")))
        environment_options(value("environment_options"))
        check_model(str(value("model_name_or_path", "")))
        _encoder(str(value("encoder", "lexical")))
        _bank(value("skill_bank"))
        check_folder(str(value("output_dir", f"outputs/{name}")))
        _trackers(value("report_to"))
        bare = any(word == "--push_to_hub" and after.startswith("--") for word, after in pairwise([*argv, "--"]))
        if bare or str(value("push_to_hub", False)).lower() in ("true", "1", "yes") or value("trajectories_hub_repo"):
            _hub(value("hub_token"))


def environment_options(given: Any) -> dict[str, Any]:
    """``--environment_options`` as a mapping."""
    return json_mapping("environment_options", given, '{"data_dir": "DATA"}')


def json_mapping(flag: str, given: Any, example: str) -> dict[str, Any]:
    """What a flag such as ``--environment_options`` holds as JSON, or a YAML file as a mapping."""
    if not given:
        return {}
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise ValueError(f"--{flag} is no JSON ({error}): {given!r}; write for example '{example}'") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"--{flag} must be a JSON mapping, got {given!r}; write for example '{example}'")
    return dict(found)


def near(word: str, known: Sequence[str]) -> str:
    """A hint at what was meant, or nothing."""
    found = difflib.get_close_matches(word, known, 1)
    return f"did you mean {found[0]!r}? " if found else ""


def _count(flag: str, value: Any) -> None:
    if value is None or value == "None":
        return
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--{flag} {value!r} is no whole number") from error
    if number < 1:
        raise ValueError(f"--{flag} {number} must be 1 or more")


def shipped_methods() -> list[str]:
    """The names of the package's methods, read from their files."""
    files = sorted((_PACKAGE / "methods").rglob("*.py"))
    return sorted({name for file in files for name in re.findall(r'^    name = "(\w+)"', file.read_text(), re.M)})


def _method(name: str) -> None:
    known = shipped_methods()
    if name in known or "." in name or ":" in name or _importable(name):
        return
    if "alignopsd_trl.methods.registry" in sys.modules:  # whoever calls may have registered one of their own
        from alignopsd_trl.methods.registry import method_names

        known = method_names()
        if name in known:
            return
    raise ValueError(
        f"--method {name!r} is unknown; {near(name, known)}choose one of {', '.join(known)}, or name the module that "
        "registers your own"
    )


def _environment(name: str) -> None:
    if name in SHIPPED or _importable(name):
        return
    what = "no such module; " if "." in name else near(name, SHIPPED)
    raise ValueError(
        f"--environment {name!r} is unknown: {what}use one of {', '.join(SHIPPED)}, or the name of a module of yours "
        "with a function suite(**options) (it must be importable from where you run)"
    )


def _importable(module: str) -> bool:
    if not all(part.isidentifier() for part in module.split(".")):
        return False
    local = Path(*module.split("."))
    if local.with_suffix(".py").is_file() or local.is_dir():
        return True
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def check_model(name: str, flag: str = "model_name_or_path") -> None:
    """Raises for what is no folder, no shipped policy and can be no Hub id."""
    if not name or name in SHIPPED_MODELS or Path(name).expanduser().is_dir():
        return
    if not _HUB_ID.fullmatch(name):
        raise ValueError(
            f"--{flag} {name!r} is no folder, no shipped policy ({', '.join(SHIPPED_MODELS)}) and no Hub "
            "id 'owner/name'; correct the path"
        )


def _encoder(name: str) -> None:
    shipped = sorted(one.name for one in (_PACKAGE / "data" / "encoders").iterdir())
    if name in ("lexical", *shipped) or Path(name).expanduser().is_dir():
        return
    if "/" not in name or not _HUB_ID.fullmatch(name):
        raise ValueError(
            f"--encoder {name!r} is no folder, and no Hub id 'owner/name'; use 'lexical', which needs no weights, "
            f"one that comes with the package ({', '.join(shipped)}), or the path of a sentence-transformers model"
        )


def _bank(name: Any) -> None:
    folder = _PACKAGE / "data" / "skills"
    if not name or (folder / f"{name}.json").is_file() or Path(str(name)).expanduser().is_file():
        return
    if ":" in str(name) and _importable(str(name).rpartition(":")[0]):
        return
    known = ", ".join(sorted(file.stem for file in folder.glob("*.json")))
    raise ValueError(
        f"--skill_bank {str(name)!r} is unknown; use one of {known}, the path of a JSON file, or module:function"
    )


def check_folder(name: str, flag: str = "output_dir") -> None:
    """Raises where a file stands in the way of a folder."""
    path = Path(name)
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise ValueError(f"--{flag} {name!r}: {path} is a file; choose another folder")


_TRACKERS = {"wandb": ("wandb",), "trackio": ("trackio",), "tensorboard": ("tensorboard", "tensorboardX")}


def _trackers(names: Any) -> None:
    for name in [names] if isinstance(names, str) else names or ():
        packages = _TRACKERS.get(name, ())
        if packages and not any(map(find_spec, packages)):
            raise ValueError(
                f"--report_to {name}: the package {packages[0]} is not installed; pip install 'alignopsd-trl[{name}]', "
                "or leave it out"
            )


def _hub(token: Any) -> None:
    """A push at the end of a long run should not fail for what is known at its beginning."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise ValueError("--push_to_hub: HF_HUB_OFFLINE is set; unset it, or push later with alignopsd push")
    if not (token or get_token()):
        raise ValueError(
            "--push_to_hub: there is no token of the Hub; run hf auth login, set HF_TOKEN, or push later with "
            "alignopsd push"
        )


def named(flag: str, value: Any, call: Callable[[], Any]) -> Any:
    """What a call returns; its `ValueError` says which flag it is about."""
    try:
        return call()
    except (ValueError, KeyError) as error:
        raise ValueError(f"--{flag} {value}: {error}") from error
