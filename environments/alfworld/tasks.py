"""The games of a split: from the official data, or generated on demand and kept.

A generated split is a numbered list: game ``i`` has task type ``i mod 6`` and a seed that no other split uses. A
request for more games generates the missing ones; earlier ones never change. ``valid_seen`` shares its rooms with
``train`` (with other things in them), ``valid_unseen`` has rooms that are held out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.alfworld.engine.categories import TASK_TYPES, parse_task_type
from alignopsd_trl.environments.alfworld.engine.games import list_games, row_of
from alignopsd_trl.environments.alfworld.engine.generator import THINGS, VERSION, Variant, generate_all
from alignopsd_trl.environments.alfworld.engine.packages import logic_checksum, official_folder, versions
from alignopsd_trl.environments.alfworld.engine.rooms import SIZE
from alignopsd_trl.environments.alfworld.options import AlfWorldOptions
from alignopsd_trl.environments.base import UNMADE
from alignopsd_trl.environments.cache import cache_folder, write_atomically

SPLITS = ("train", "valid_seen", "valid_unseen")
COUNTS = {"train": 600, "valid_seen": 128, "valid_unseen": 128}
_SEEDS_PER_SPLIT, _SEEDS = 1_000_000, 10_000_000
_AT_ONCE = 64  # games that are proven side by side


@dataclass(frozen=True)
class OfficialGames:
    """The official splits under a folder, by the official listing rules, in sorted order."""

    folder: Path
    task_types: tuple[str, ...] = tuple(TASK_TYPES.values())

    def root(self, split: str) -> Path:
        return self.folder / split

    def rows(self, split: str, count: int = 0) -> list[dict[str, Any]]:
        """Returns rows of a split, the first ``count`` if that is above 0."""
        return list_games(self.root(split), split, self.task_types, count)

    def describe(self) -> dict[str, Any]:
        return {"games": "official", "task_types": list(self.task_types)}


@dataclass(frozen=True)
class GeneratedGames:
    """Generated splits under the cache folder. ``seed`` gives other splits of the same kind, ``size`` is the number of
    receptacles in a room, ``things`` the number of things beside those of the task."""

    seed: int = 0
    task_types: tuple[str, ...] = tuple(TASK_TYPES.values())
    size: tuple[int, int] = SIZE
    things: tuple[int, int] = THINGS

    def root(self, split: str) -> Path:
        rules = f"v{VERSION}-{logic_checksum()}-alfworld{versions()['alfworld']}"
        numbers = "".join(str(number) for number, kind in TASK_TYPES.items() if kind in self.task_types)
        rooms = "" if self.size == SIZE else f"-rooms{self.size[0]}to{self.size[1]}"
        rooms += "" if self.things == THINGS else f"-things{self.things[0]}to{self.things[1]}"
        return cache_folder("alfworld") / "games" / rules / f"seed{self.seed}-types{numbers}{rooms}" / split

    def rows(self, split: str, count: int = 0) -> list[dict[str, Any]]:
        """Returns rows of the first ``count`` games of a split (0: the default number). Generates missing ones."""
        count = count or COUNTS[split]
        manifest = self.root(split) / "rows.json"
        rows = self._kept(split, manifest)
        if len(rows) < count:
            rows = rows + self._make(split, range(len(rows), count))
            write_atomically(manifest, json.dumps(rows).encode())
        return rows[:count]

    def sketch(self, split: str, made: int, count: int = 0) -> list[dict[str, Any]]:
        """Returns as many rows as `rows`, and generates at most the first ``made`` games: missing ones are `UNMADE`."""
        count = count or COUNTS[split]
        known = self._kept(split, self.root(split) / "rows.json")[:count]
        known = known if len(known) >= made else self.rows(split, made)
        kinds = [self.task_types[number % len(self.task_types)] for number in range(count)]
        blank = {"goal": "", "digest": ""}
        return known + [row_of(split, f"{kinds[n]}-{n}/{UNMADE}", blank) for n in range(len(known), count)]

    def describe(self) -> dict[str, Any]:
        return {
            "games": "generated",
            "generator": VERSION,
            "seed": self.seed,
            "task_types": list(self.task_types),
            "room_size": list(self.size),
            "room_things": list(self.things),
        }

    def _kept(self, split: str, manifest: Path) -> list[dict[str, Any]]:
        try:
            rows = json.loads(manifest.read_bytes())
        except (FileNotFoundError, ValueError):  # not there, or not whole: the same games are made again
            return []
        for index, row in enumerate(rows):
            if not (self.root(split) / row["task_id"] / "game.tw-pddl").exists():
                return rows[:index]
        return rows

    def _make(self, split: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
        from tqdm import tqdm

        from alignopsd_trl.environments.alfworld.environment import Factory

        first = self.seed * _SEEDS + SPLITS.index(split) * _SEEDS_PER_SPLIT
        wanted = [(self.task_types[number % len(self.task_types)], first + number) for number in numbers]
        variant = Variant(split == "valid_unseen", self.size, self.things)
        size = min(_AT_ONCE, len(wanted))
        batch = Factory().batch(size, workers=None if len(wanted) > _AT_ONCE else 1)  # a process costs seconds to start
        try:
            with tqdm(total=len(wanted), desc=f"ALFWorld games, {split}", unit="game") as bar:
                games = generate_all(wanted, batch, size, variant, progress=bar.update)
        finally:
            batch.close()
        for game in games:
            game.write(self.root(split))
        return [game.row(split) for game in games]


def source(options: AlfWorldOptions) -> OfficialGames | GeneratedGames:
    """Returns the source of games, ``generated`` or ``official``.

    Raises:
        ValueError: if a task type is unknown, or ``room_size`` or ``room_things`` is not a range.
        FileNotFoundError: if the official data are not there.
    """
    kinds = [parse_task_type(str(kind)) for kind in options.task_types or TASK_TYPES]
    ordered = tuple(kind for kind in TASK_TYPES.values() if kind in kinds)
    if options.games == "generated":
        size, things = ((least, most) for least, most in (options.room_size, options.room_things))
        if not 1 <= size[0] <= size[1]:
            raise ValueError(f"room_size={size} must be (least, most) receptacles of a room, at least 1")
        if not 0 <= things[0] <= things[1]:
            raise ValueError(f"room_things={things} must be (least, most) further things in a room, at least 0")
        return GeneratedGames(options.seed, ordered, size, things)
    place = Path(options.folder).expanduser() if options.folder else official_folder()
    if not place.is_dir():
        raise FileNotFoundError(
            f"{place}: no official ALFWorld games; run `alfworld-download`, set ALFWORLD_DATA, or use games='generated'"
        )
    return OfficialGames(place, ordered)
