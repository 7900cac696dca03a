"""Games of ALFWorld's kind with two things to bring to one place: 8 to 13 turns, each game with one trap on its way.

Rooms, commands and sentences are ALFWorld's, played in plain Python, so that the extra ``alfworld`` is not needed; see
`alignopsd_trl.environments.alfworld.pairs` for the games.
"""

from __future__ import annotations

from typing import Any

from alignopsd_trl.environments.alfworld.options import PairOptions
from alignopsd_trl.environments.alfworld.pairs import KINDS, PairFactory, PairTasks
from alignopsd_trl.environments.alfworld.prompt import AlfWorldPrompt
from alignopsd_trl.environments.base import Suite


def suite(seed: int = 0, **options: Any) -> Suite:
    """Makes pair games with their tasks. Splits and panels: ``train`` and ``test``.

    Args:
        seed (`int`, *optional*, defaults to 0): another one makes other games.
        options: see `PairOptions`.

    Raises:
        ValueError: on an unknown option, or an unknown value of one.
    """
    chosen = PairOptions.of(options)
    tasks, prompt = PairTasks(seed), AlfWorldPrompt(chosen.template)
    return Suite(
        name="alfworld_pairs",
        factory=PairFactory(chosen),
        tasks=tasks.dataset,
        panel=tasks.panel,
        categories=KINDS,
        description={
            "environment": "alfworld_pairs",
            "seed": seed,
            "prompt": f"{prompt.name}-{prompt.checksum}",
            **chosen.described(),
        },
        skill_bank="alfworld_pairs",
    )
