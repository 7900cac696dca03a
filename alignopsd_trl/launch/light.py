"""A plan in four CPU seconds in place of seven: transformers' ``trainer_utils``, which configurations need, imports
PEFT, and PEFT every model class, for two names that are only compared with. A run imports them as they are."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from alignopsd_trl.patched import patched


class _Later(type):
    """Stands for a class of PEFT until something is compared with it."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, getattr(import_module("peft"), cls.__name__))


def import_configs() -> None:
    """Imports transformers' ``trainer_utils`` without PEFT, unless either was imported before."""
    found = None if "peft" in sys.modules else find_spec("peft")
    if found is None or "transformers.trainer_utils" in sys.modules:
        return
    stand_in: Any = ModuleType("peft")
    stand_in.__spec__ = found
    stand_in.PeftModel, stand_in.PeftMixedModel = (_Later(name, (), {}) for name in ("PeftModel", "PeftMixedModel"))
    sys.modules["peft"] = stand_in
    try:
        import_module("transformers.trainer_utils")
    finally:
        del sys.modules["peft"]


def no_kubeflow() -> AbstractContextManager[None]:
    """Configurations that no run follows: making one asks transformers' integrations whether Kubeflow listens, and
    they import every model class to say so."""
    return patched(import_module("transformers.integrations"), is_kubeflow_available=lambda: False)
