"""AlignOPSD on TRL: decision-aligned on-policy distillation for agents that act over many turns."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from alignopsd_trl.common.cores import wait_shortly
from alignopsd_trl.common.earlier import keep_earlier_names

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig
    from alignopsd_trl.encoder import Encoder, load_encoder
    from alignopsd_trl.methods import Credit, Method, get_method, method_names, register
    from alignopsd_trl.records import read_records
    from alignopsd_trl.results.play import evaluate
    from alignopsd_trl.results.summary import EvaluationResult
    from alignopsd_trl.skills import SkillBank
    from alignopsd_trl.trainer import AlignOPSDTrainer
    from alignopsd_trl.turns import StopReason, Thought, Trajectory, Turn, TurnBatch

_HOMES = {
    "AlignOPSDConfig": "config",
    "AlignOPSDTrainer": "trainer",
    "Credit": "methods",
    "Encoder": "encoder",
    "EvaluationResult": "results.summary",
    "Method": "methods",
    "SkillBank": "skills",
    "StopReason": "turns",
    "Thought": "turns",
    "Trajectory": "turns",
    "Turn": "turns",
    "TurnBatch": "turns",
    "evaluate": "results.play",
    "get_method": "methods",
    "load_encoder": "encoder",
    "method_names": "methods",
    "read_records": "records",
    "register": "methods",
}

__all__ = sorted(_HOMES)

keep_earlier_names()
wait_shortly(os.environ)  # before a public name brings torch
# TRL 1.16 calls activation checkpointing by its old name, of which transformers 5.23 warns at every start.
warnings.filterwarnings("ignore", r"`(is_)?gradient_checkpointing", FutureWarning, r"transformers\.")


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: modules of pure maths need neither TRL nor transformers."""
    if name not in _HOMES:
        raise AttributeError(f"module 'alignopsd_trl' has no attribute {name!r}")
    return getattr(import_module(f"alignopsd_trl.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
