"""Records that make a result traceable: checksums of code and weights, versions of packages."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("alignopsd-trl", "trl", "transformers", "torch", "accelerate", "peft", "datasets", "numpy")
_SAMPLE = 2**20


def versions() -> dict[str, str | None]:
    """Returns the versions of the packages that a result depends on."""
    return {package: _version(package) for package in PACKAGES}


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def code_checksum() -> str:
    """Returns the first 16 hex digits of the sha256 over this project's Python files; needs no repository."""
    from alignopsd_trl.environments import base

    digest = hashlib.sha256()
    for folder in (Path(__file__).parents[1], Path(base.__file__).parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def machine() -> dict[str, str | int]:
    """Returns the facts of the machine that a run uses."""
    import joblib
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    found = {"device": device, "cores": joblib.cpu_count(), "platform": platform.platform(terse=True)}
    return found | {"python": platform.python_version()}


def model_name(model: Any) -> str:
    """Returns the source of a model: a hub id, a path, or the name of a shipped policy; for a model that was made in
    Python, that fact and its class."""
    from alignopsd_trl.common.models import SHIPPED_MODELS

    given = str(getattr(model.config, "_name_or_path", "") or "")
    if not given:
        return f"{type(model).__name__} made in Python"
    return next((name for name, path in SHIPPED_MODELS.items() if Path(given) == path), given)


def weights_checksum(model: str) -> str:
    """Returns the checksum of a local folder: first 16 hex digits of the sha256 over name, size, first and last MiB of
    each weight file (all of it where a model is small). A hub id is its own checksum."""
    from alignopsd_trl.common.models import resolve_model

    folder = Path(resolve_model(model))
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as content:
            digest.update(content.read(_SAMPLE))
            content.seek(max(size - _SAMPLE, 0))
            digest.update(content.read(_SAMPLE))
    return digest.hexdigest()[:16]
