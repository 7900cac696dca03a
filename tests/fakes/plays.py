"""The one way in which tests play rows of an environment with a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.rollout.episode import episode_seeds
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.turns import Trajectory


def play_with(
    sampler: Any,
    factory: Any,
    rows: Sequence[dict[str, Any]],
    tokenizer: Any,
    *,
    siblings: int = 1,
    step: int = 0,
    time_limit: float = 5.0,
    reserved: int = 0,
    **given: Any,
) -> list[Trajectory]:
    """Episodes side by side, one a row, of which ``siblings`` in a row are one group at a training step; ``given`` are
    fields of `PlayOptions` and of `Player`."""
    options = PlayOptions(**{name: given.pop(name) for name in PlayOptions.names() if name in given})
    batch = open_batch(factory, len(rows), time_limit)
    player = Player.of(batch, sampler, tokenizer, [tokenizer.eos_token_id], options, reserved, **given)
    seeds = [episode_seeds(row["task_id"], step, place % siblings) for place, row in enumerate(rows)]
    try:
        return player.play(rows, seeds, [row["task_id"] for row in rows])
    finally:
        batch.close()
