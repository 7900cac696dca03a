"""Divides a study into cells: one per environment, line and seed. A line that occurs in several tables runs once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from alignopsd_trl.launch.presets import preset
from alignopsd_trl.study.spec import Benchmark, Line, Study, StudyError


@dataclass(frozen=True)
class Place:
    """The position of a cell's row: a line of the table ``methods`` or ``ablations``, or a point of a sweep."""

    table: str
    position: int
    label: str
    value: Any = None


@dataclass
class Cell:
    """One run of one method on one environment with one seed.

    Args:
        config: mapping that the recipe reads as YAML: the protocol, the method, its own settings, the seed.
        trains: the cell is a run of the recipe; otherwise an evaluation alone.
        skills: the evaluation has skills in the policy's prompt.
        source: the cell whose last checkpoint is evaluated; `None`: the initial weights.
        folder: folder named by a fingerprint of all of the above, by which any study finds a finished cell.
    """

    benchmark: Benchmark
    line: Line
    seed: int
    config: Mapping[str, Any]
    trains: bool
    skills: bool
    folder: Path
    source: Cell | None = None
    places: list[Place] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.benchmark.label} {self.line.title} seed {self.seed}"

    @property
    def row_file(self) -> Path:
        return self.folder / "row.parquet"

    @property
    def columns(self) -> dict[str, Any]:
        """Returns the columns of a row that the study knows and the run does not."""
        return {
            "environment": self.benchmark.label,
            "method": self.line.method,
            "label": self.line.title,
            "seed": self.seed,
            "settings": json.dumps(dict(self.line.settings), sort_keys=True),
            "places": json.dumps([asdict(place) for place in self.places]),
            "columns": json.dumps({"categories": self.benchmark.categories, "averages": dict(self.benchmark.averages)}),
            "folder": str(self.folder),
        }


def plan(study: Study) -> list[Cell]:
    """Returns all cells in the order in which they run: all cells of the first seed, then those of the next, so that an
    interrupted study has whole seeds. A cell that evaluates another cell's weights (`Cell.source`) comes after it.

    Raises:
        StudyError: for an unknown method, a setting that does not exist, or a starred line (a line that is evaluated
            with skills) whose line without skills is missing.
    """
    _check_names(study)
    cells: dict[Path, Cell] = {}
    for seed in study.seeds:
        for benchmark in study.environments:
            for line, place in _lines(study, benchmark):
                made = _cell(study, benchmark, line, seed)
                cells.setdefault(made.folder, made).places.append(place)
    ordered = sorted(cells.values(), key=lambda cell: (study.seeds.index(cell.seed), cell.source is not None))
    for cell in ordered:
        if cell.source is not None:
            cell.source = cells.get(cell.source.folder)
            if cell.source is None:
                raise StudyError(f"{cell.line.title}: add the line {cell.line.method!r} without skills; it trains it")
    return ordered


def _lines(study: Study, benchmark: Benchmark) -> Iterator[tuple[Line, Place]]:
    for table in ("methods", "ablations"):
        for position, line in enumerate(getattr(study, table)):
            yield _without_defaults(study, benchmark, line), Place(table, position, line.title)
    for name, values in study.sweeps.items():
        for position, value in enumerate(values):
            line = _without_defaults(study, benchmark, Line(label=f"AlignOPSD {name}={value}", settings={name: value}))
            yield line, Place(f"sweep {name}", position, f"{name}={value}", value)


def _without_defaults(study: Study, benchmark: Benchmark, line: Line) -> Line:
    """Drops settings that equal the defaults, so that equivalent lines share one cell."""
    if not line.settings:
        return line
    from alignopsd_trl.launch.arguments import KINDS

    shared = {**study.settings, **benchmark.settings}
    options = {**shared, **line.settings}.get("method_options")
    base = {**preset(benchmark.recipe, shared.get("preset", "paper"), line.method, options), **shared}
    usual = {name: one.default for kind in KINDS for name, one in kind.__dataclass_fields__.items()}
    own = {name: value for name, value in line.settings.items() if value != base.get(name, usual[name])}
    return Line(line.method, line.label if own else "", own, line.skills)


def _cell(study: Study, benchmark: Benchmark, line: Line, seed: int) -> Cell:
    from alignopsd_trl.methods import get_method

    try:
        method = get_method(line.method)
    except ValueError as error:
        raise StudyError(str(error)) from error
    if line.skills and not method.trains:
        raise StudyError(f"{line.title}: {line.method!r} trains nothing; for the initial weights use 'skill_prompt'")
    config = {**study.settings, **benchmark.settings, **line.settings, "method": line.method, "seed": seed}
    content = json.dumps([benchmark.recipe, config, line.skills], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    star = "_with_skills" if line.skills else ""
    folder = study.cells / benchmark.recipe / f"{line.method}{star}_{seed}_{digest}"
    source = _cell(study, benchmark, Line(line.method, settings=line.settings), seed) if line.skills else None
    skills = line.skills or method.skills_in_evaluation
    return Cell(benchmark, line, seed, config, method.trains and not line.skills, skills, folder, source)


def _check_names(study: Study) -> None:
    from alignopsd_trl.launch.arguments import KINDS

    known = {name for kind in KINDS for name in kind.__dataclass_fields__}
    for place, settings in [("settings", study.settings), *((a.recipe, a.settings) for a in study.environments)]:
        if unknown := sorted(set(settings) - known):
            raise StudyError(f"{place}: {unknown[0]!r} is no argument of the recipes, the config or the model")
