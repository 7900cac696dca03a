"""Privileged texts that belong to one turn and are known only after the round was played."""

from alignopsd_trl.privileged.source import PrivilegedError, PrivilegedSource, SourceSpec, load_source
from alignopsd_trl.privileged.texts import Bounds, TurnTexts, reserved_tokens

__all__ = ["Bounds", "PrivilegedError", "PrivilegedSource", "SourceSpec", "TurnTexts", "load_source", "reserved_tokens"]
