"""ALFWorld for a policy of a few million parameters: small rooms, short prompts, sixteen commands.

Engine, tasks and rewards are ALFWorld's own; `alignopsd_trl.environments.load("alfworld_tiny")` only sets options.
Games are generated and kept on first use (about a minute). Needs the extra ``alfworld``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from alignopsd_trl.environments import alfworld
from alignopsd_trl.environments.base import Suite

OPTIONS: dict[str, Any] = {
    "template": "tiny",
    "room_size": [5, 7],
    "room_things": [2, 6],
    "counts": {"train": 240, "valid_seen": 120, "valid_unseen": 60},
    "max_turns": 16,
    "history_length": 8,
}


def suite(**options: Any) -> Suite:
    """Makes ALFWorld's suite with `OPTIONS` as defaults."""
    return replace(alfworld.suite(**OPTIONS | options), skill_bank="alfworld")
