"""Reads the study file, a YAML mapping, into dataclasses, checks it before anything runs, and divides it into cells:
one per environment, line and seed. A line that occurs in several tables runs once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from alignopsd_trl.commands.launch.presets import preset
from alignopsd_trl.commands.launch.values import environment_options, options_over, read_yaml
from alignopsd_trl.common.errors import UserError
from alignopsd_trl.environments.loading import lacks_data
from alignopsd_trl.environments.shipped import BENCHMARKS
from alignopsd_trl.methods.align_opsd.options import OPTION_NAMES

LABELS = {
    "vanilla": "Vanilla",
    "skill_prompt": "Skill-Prompt*",
    "opsd": "OPSD",
    "grpo": "GRPO",
    "skill_grpo": "Skill-GRPO",
    "grpo_opsd": "GRPO+OPSD",
    "skill_sd": "Skill-SD",
    "rlsd": "RLSD",
    "sdar": "SDAR",
    "step_opsd": "StepOPSD",
    "align_opsd": "AlignOPSD",
    "gigpo": "GiGPO",
    "hgpo": "HGPO",
    "graphgpo": "GraphGPO",
    "gagpo": "GAGPO",
    "beacon": "BEACON",
    "monte_carlo": "Monte Carlo",
    "agent_opsd": "AgentOPSD",
}
"""The rows' names in the paper's Table 1. A star means an evaluation with skills."""

_TEACHER = ("teacher_model_kind", "privileged", "privileged_siblings")
_STEPS = ("learning_rate", "num_iterations", "updates_per_round")
METHOD_FIELDS = ("method_options", *OPTION_NAMES, *_TEACHER, *_STEPS)
"""Settings that a row may have of its own. All rounds have the same size; a row chooses its steps, by a search that was
alike for all rows. Everything else is protocol and the same for all rows."""

_OWNED = ("method", "seed", "output_dir", "evaluate_first", "resume_from_checkpoint", "plan", "config", "disable_tqdm")


class StudyError(UserError):
    """Raised for a study that can't run as it is written. The message names place, value and remedy."""


def _of_a_row(name: str) -> str:
    if name not in METHOD_FIELDS:
        raise ValueError(
            f"{name!r} is part of the protocol, which all rows share; set it under the study's or the environment's "
            f"settings. A row may set {', '.join(METHOD_FIELDS)}"
        )
    return name


def _of_the_protocol(name: str) -> str:
    if name in _OWNED:
        raise ValueError(f"{name!r} is set by the study itself for every cell; remove it")
    return name


RowSettings = dict[Annotated[str, AfterValidator(_of_a_row)], Any]
Protocol = dict[Annotated[str, AfterValidator(_of_the_protocol)], Any]
_FILE = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


@dataclass(frozen=True, config=_FILE)
class TableLine:
    """One line of a table: a method and its own settings; with ``skills`` a starred row, which evaluates the checkpoint
    of the same method and settings with skills."""

    method: str = "align_opsd"
    label: str = ""
    settings: RowSettings = field(default_factory=dict)
    skills: bool = False

    @property
    def title(self) -> str:
        return self.label or LABELS.get(self.method, self.method) + ("*" if self.skills else "")


@dataclass(frozen=True, config=_FILE)
class Benchmark:
    """A benchmark: the defaults of a recipe, and the study's settings for every row.

    Args:
        recipe: ``<benchmark>_<backbone>``, or a user's module with a mapping ``PRESET``.
        categories: order of the table's columns; unnamed categories follow in alphabetical order.
        averages: columns after the categories: ``score``, ``success`` (over episodes) or ``success_macro`` (over
            categories), each with its title.
    """

    recipe: str
    label: str
    averages: dict[Literal["score", "success", "success_macro"], str]
    settings: Protocol = field(default_factory=dict)
    categories: tuple[str, ...] = ()


def _with_method(content: Any) -> Any:
    if isinstance(content, Mapping) and "method" not in content:
        raise ValueError(f"{content} names no method")
    return _line(content)


def _line(content: Any) -> Any:
    return {"method": content} if isinstance(content, str) else content


def _benchmark(content: Any) -> Any:
    """Adds the defaults of the recipe's environment."""
    content = {"recipe": content} if isinstance(content, str) else content
    if not isinstance(content, Mapping):
        return content
    recipe = content.get("recipe", "")
    preset(recipe)
    known = BENCHMARKS.get(recipe.partition("_")[0])
    label, averages = (known.title, dict(known.averages)) if known else (recipe, {"success": "Success"})
    return {"label": label, "averages": averages} | dict(content)


@dataclass(frozen=True, config=_FILE)
class Study:
    """A study: its lines, the folders of its results, and the number of processes that share the machine.

    Args:
        cells: folder of the finished cells; studies with the same folder and protocol share cells.
        methods, ablations: lines of Table 1 and of the ablation table.
        sweeps: field of AlignOPSD -> its values, for the sensitivity curves.
        reference: method to compare differences with.
        processes: number of cells that run at the same time, with an equal share of the cores.
        launcher: command that starts a training cell, such as ``accelerate launch ...``; plain Python by default.
        devices: ``CUDA_VISIBLE_DEVICES`` of each process.
        official_data: refuse to run where an environment lacks its benchmark's own data.
    """

    name: str
    environments: tuple[Annotated[Benchmark, BeforeValidator(_benchmark)], ...]
    output: Path
    cells: Path
    seeds: tuple[int, ...] = (0,)
    settings: Protocol = field(default_factory=dict)
    methods: tuple[Annotated[TableLine, BeforeValidator(_with_method)], ...] = ()
    ablations: tuple[Annotated[TableLine, BeforeValidator(_line)], ...] = ()
    sweeps: dict[Annotated[str, AfterValidator(_of_a_row)], tuple[Any, ...]] = field(default_factory=dict)
    reference: str = "grpo"
    processes: int = 1
    launcher: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    official_data: bool = False


def read_study(path: str | Path) -> Study:
    """Reads a study from a YAML file. Raises `StudyError` for a file that can't be read, unknown or missing keys,
    protocol settings in a row, or values out of range."""
    try:
        read = read_yaml(path, "", "methods: [grpo, align_opsd]")
        content: dict[str, Any] = {"name": Path(path).stem} | {k: v for k, v in read.items() if v is not None}
        content.setdefault("output", Path("outputs/studies") / str(content["name"]))
        content.setdefault("cells", Path(content["output"]) / "cells")
        study = TypeAdapter(Study).validate_python(content)
    except ValidationError as error:
        raise StudyError(f"{path}: {_problem(error.errors()[0])}") from error
    except ValueError as error:
        raise StudyError(str(error)) from error
    _check(study)
    return study


def _problem(error: ErrorDetails) -> str:
    *places, last = map(str, error["loc"])
    place = "".join(f"{one}: " for one in [".".join(places)] if one)
    match error["type"]:
        case "unexpected_keyword_argument":
            return f"{place}key {last!r} is unknown"
        case "missing":
            return f"{place}key {last!r} is missing"
        case "literal_error":
            return f"{place}{error['input']!r} is unknown; choose {error['ctx']['expected']}"
        case "tuple_type":
            return f"{place}{last} must be a list, got {error['input']!r}"
    said = error["msg"].removeprefix("Value error, ")
    return f"{place}{last}: {said}" if last != "[key]" else f"{place}{said}"


def _check(study: Study) -> None:
    if not study.environments:
        raise StudyError("environments is empty; name at least one recipe, such as 'webshop_tiny'")
    if not (study.methods or study.ablations or study.sweeps):
        raise StudyError("nothing to run: give methods, ablations or sweeps")
    if not study.seeds or len(set(study.seeds)) != len(study.seeds):
        raise StudyError(f"seeds={list(study.seeds)} must name at least one seed and each once")
    if wrong := [seed for seed in study.seeds if not 0 <= seed < 2**32]:
        raise StudyError(f"seeds={list(study.seeds)}: {wrong[0]} must lie in [0, 2**32)")
    if study.processes < 1 or (study.devices and len(study.devices) != study.processes):
        raise StudyError(f"processes={study.processes} must be at least 1, and devices must name one a process")
    labels = [benchmark.label for benchmark in study.environments]
    if len(set(labels)) != len(labels):
        raise StudyError(f"environments have the labels {labels}; give each its own")


@dataclasses.dataclass(frozen=True)
class TablePlace:
    """The position of a cell's row: a line of the table ``methods`` or ``ablations``, or a point of a sweep."""

    table: str
    position: int
    label: str
    value: Any = None


@dataclasses.dataclass
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
    line: TableLine
    seed: int
    config: Mapping[str, Any]
    trains: bool
    skills: bool
    folder: Path
    source: Cell | None = None
    places: list[TablePlace] = field(default_factory=list)

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
    Raises `StudyError` for an unknown method, a setting that does not exist, or a starred line (a line that is
    evaluated with skills) whose line without skills is missing."""
    for place, settings in [("settings", study.settings), *((one.recipe, one.settings) for one in study.environments)]:
        if unknown := sorted(set(settings) - _defaults().keys()):
            raise StudyError(f"{place}: {unknown[0]!r} is no argument of the recipes, the config or the model")
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


def missing_data(study: Study) -> list[str]:
    """Returns a sentence for each environment that lacks its benchmark's own data, if the study asks for them."""
    found = []
    for benchmark in study.environments if study.official_data else ():
        own = {**study.settings, **benchmark.settings}
        usual = preset(benchmark.recipe, own.get("preset", "paper"))
        chosen = {"panel": "test", **usual, **own}
        options = options_over(usual.get("environment_options"), own.get("environment_options"))
        if problem := lacks_data(chosen["environment"], chosen["panel"], environment_options(options)):
            found.append(f"{benchmark.label} lacks the benchmark's own data: {problem}")
    return found


def _lines(study: Study, benchmark: Benchmark) -> Iterator[tuple[TableLine, TablePlace]]:
    for table in ("methods", "ablations"):
        for position, line in enumerate(getattr(study, table)):
            yield _without_defaults(study, benchmark, line), TablePlace(table, position, line.title)
    for name, values in study.sweeps.items():
        for position, value in enumerate(values):
            line = _without_defaults(
                study, benchmark, TableLine(label=f"AlignOPSD {name}={value}", settings={name: value})
            )
            yield line, TablePlace(f"sweep {name}", position, f"{name}={value}", value)


def _without_defaults(study: Study, benchmark: Benchmark, line: TableLine) -> TableLine:
    """Drops settings that equal the defaults, so that equivalent lines share one cell."""
    if not line.settings:
        return line
    shared = {**study.settings, **benchmark.settings}
    options = {**shared, **line.settings}.get("method_options")
    base = _defaults() | preset(benchmark.recipe, shared.get("preset", "paper"), line.method, options) | shared
    own = {name: value for name, value in line.settings.items() if value != base[name]}
    return TableLine(line.method, line.label if own else "", own, line.skills)


def _defaults() -> dict[str, Any]:
    """Returns the default of every argument of the recipes, the config and the model."""
    from alignopsd_trl.commands.launch.arguments import KINDS

    return {name: one.default for kind in KINDS for name, one in kind.__dataclass_fields__.items()}


def _cell(study: Study, benchmark: Benchmark, line: TableLine, seed: int) -> Cell:
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
    source = _cell(study, benchmark, TableLine(line.method, settings=line.settings), seed) if line.skills else None
    skills = line.skills or method.skills_in_evaluation
    return Cell(benchmark, line, seed, config, method.trains and not line.skills, skills, folder, source)
