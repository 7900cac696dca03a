"""Options of ALFWorld."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alignopsd_trl.environments.alfworld.engine.generator import THINGS
from alignopsd_trl.environments.alfworld.engine.rooms import SIZE
from alignopsd_trl.environments.alfworld.prompt import VALIDITY
from alignopsd_trl.environments.options import Options, option


@dataclass(frozen=True)
class AlfWorldOptions(Options):
    """Options of `alignopsd_trl.environments.alfworld.suite`, explained by the ``help`` of each field."""

    games: str = option(
        "generated",
        "'generated' makes and keeps games of our own; 'official' plays those of alfworld-download.",
        choices=("generated", "official"),
        described=False,
    )
    folder: str | None = option(None, "Of the official splits, by default $ALFWORLD_DATA/json_2.1.1.", described=False)
    counts: Mapping[str, int] | None = option(
        None,
        "Split -> number of games, its first ones. Default: all official games; 600, 128 and 128 generated ones.",
        described=False,
    )
    task_types: Sequence[str] | None = option(
        None, "Names, categories or numbers of the wanted types, by default all six.", described=False
    )
    seed: int = option(0, "Of generated splits; another seed makes other games.", described=False)
    room_size: Sequence[int] = option(
        SIZE,
        "Fewest and most receptacles in a generated room. Rooms have at least what their kind needs: four to eight.",
        described=False,
    )
    room_things: Sequence[int] = option(
        THINGS, "Fewest and most things in a generated room, beside those of the task.", described=False
    )
    engine: str = option(
        "fast",
        "'plain' is TextWorld's own text layer (the reference, several hundred times slower).",
        choices=("fast", "plain"),
    )
    validity: str = option("format", "See `alignopsd_trl.environments.alfworld.prompt.project`.", choices=VALIDITY)
    max_turns: int = option(50, "Commands after which the caller ends an episode.", least=1)
    history_length: int = option(2, "Turns that a prompt shows at most.", least=0)
    template: str = option("paper", "Of the prompt: 'paper', 'tiny' for short prompts, or a jinja file.")
    won_reward: float = option(10.0, "Of an episode that was won; every other has 0.")


@dataclass(frozen=True)
class PairOptions(Options):
    """Options of `alignopsd_trl.environments.alfworld_pairs.suite`, explained by the ``help`` of each field."""

    max_turns: int = option(15, "Commands after which the caller ends an episode.", least=1)
    history_length: int = option(14, "Turns that a prompt shows at most.", least=0)
    template: str = option("pairs", "Of the prompt: 'pairs', another of ALFWorld's, or a jinja file.")
    won_reward: float = option(1.0, "Of an episode that was won; every other has 0.")
