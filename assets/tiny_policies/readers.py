"""Scripted readers for Search-QA's closed worlds: search, quote what the passage says, answer.

No demonstration comes from the embedded world: a small model would learn its facts by heart. The worlds here have other
seeds, hence other facts about other names of the same syllables, so that nothing but reading pays.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from alignopsd_trl.environments import searchqa_tiny
from alignopsd_trl.environments.base import Suite, TextEnvironment
from assets.tiny_policies.demonstrations import Played, episode
from assets.worlds import closed_world_names as names
from assets.worlds.closed_world import generate
from assets.worlds.closed_world_player import ScriptedPlayer

CARELESS = (0.3, 0.5, 0.7)  # error rate of an episode without a skill
CAREFUL = 0.03  # error rate of every answer under a skill
WORLDS = 15  # a pass
FIRST_SEED, SEED_STEP = 1000, 1000  # of the worlds, for seed 0 and from seed to seed; the embedded one has 7


def pieces() -> tuple[tuple[str, ...], ...]:
    """Words of more than one token: numbers by two digits, and names of two syllables (in any case)."""
    syllables = (
        (names.TOWN_A, names.TOWN_B),
        (names.RIVER_A, names.RIVER_B),
        (names.MOUNT_A, names.MOUNT_B),
    )
    numbers = ((r"\d{1,2}", r"\d{2}"), (r"\d", r"\d{2}", r"\d{2}"))
    return *numbers, *((_any_of(heads), _any_of(tails)) for heads, tails in syllables)


def _any_of(syllables: list[str]) -> str:
    return f"(?i:{'|'.join(syllable for syllable in syllables if not syllable.endswith(' '))})"


def episodes(suite: Suite, passes: int, seed: int) -> Iterator[tuple[TextEnvironment, Mapping[str, Any]]]:
    """All questions of `WORLDS` invented worlds a pass, a world at a time; every seed has worlds of its own. The
    suite's tasks are not among them."""
    draw = random.Random(seed)
    for world in range(passes * WORLDS):
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder), FIRST_SEED + SEED_STEP * seed + world)
            invented = searchqa_tiny.suite(folder)
            rows = [row for split in ("train", "test") for row in invented.panel(split).rows]
            environment = invented.factory()
            for row in draw.sample(rows, len(rows)):
                yield environment, row


def play(environment: TextEnvironment, row: Mapping[str, Any], careful: bool, draw: random.Random) -> list[Played]:
    """One episode of a reader who hardly errs, or of one who errs at about half of the turns."""
    model = ScriptedPlayer(CAREFUL, draw.getrandbits(32), quotes=True)
    reader = model if careful else ScriptedPlayer(draw.choice(CARELESS), draw.getrandbits(32), quotes=True)
    views, answers, _ = episode(environment, row, reader.respond)
    return [Played(view, answer, partial(model.respond, view)) for view, answer in zip(views, answers, strict=True)]
