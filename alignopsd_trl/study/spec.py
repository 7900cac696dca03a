"""Reads the study file, a YAML mapping, into dataclasses and checks it before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.shipped import BENCHMARKS
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.launch.values import read_yaml
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
    "monte_carlo": "Monte Carlo",
    "agent_opsd": "AgentOPSD",
}
"""The rows' names in the paper's Table 1. A star means an evaluation with skills."""

_TEACHER = (
    "teacher_model_kind",
    "teacher_update_rate",
    "teacher_sync_steps",
    "privileged_siblings",
    "privileged_rounds",
)
STEPS = ("num_iterations", "updates_per_round")
"""Settings of a row that decide the optimiser steps of a round."""
METHOD_FIELDS = ("method_options", *OPTION_NAMES, *_TEACHER, *STEPS)
"""Settings that a row may have of its own. All rounds have the same size; a row chooses its steps a round. Everything
else is protocol and the same for all rows."""

_OWNED = ("method", "seed", "output_dir", "evaluate_first", "resume_from_checkpoint", "plan", "config", "disable_tqdm")
_AVERAGES = ("score", "success", "success_macro")


class StudyError(ValueError):
    """Raised for a study that can't run as it is written. The message names place, value and remedy."""


@dataclass(frozen=True)
class Line:
    """One line of a table: a method and its own settings.

    ``skills``: evaluates the checkpoint of the same method and settings with skills (a starred row).
    """

    method: str = "align_opsd"
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    skills: bool = False

    @property
    def title(self) -> str:
        return self.label or LABELS.get(self.method, self.method) + ("*" if self.skills else "")


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: the defaults of a recipe, and the study's settings for every row.

    Args:
        recipe: ``<benchmark>_<backbone>``, or a user's module with a mapping ``PRESET``.
        categories: order of the table's columns; unnamed categories follow in alphabetical order.
        averages: columns after the categories: ``score``, ``success`` (over episodes) or ``success_macro`` (over
            categories), each with its title.
    """

    recipe: str
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    categories: tuple[str, ...] = ()
    averages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study: its lines, the folders of its results, and the number of processes that share the machine.

    Args:
        cells: folder of the finished cells; studies with the same folder and protocol share cells.
        methods, ablations: lines of Table 1 and of the ablation table.
        sweeps: field of AlignOPSD -> its values, for the sensitivity curves.
        reference: method to compare differences and costs with.
        processes: number of cells that run at the same time, with an equal share of the cores.
        launcher: command that starts a training cell, such as ``accelerate launch ...``; plain Python by default.
        devices: ``CUDA_VISIBLE_DEVICES`` of each process.
    """

    name: str
    environments: tuple[Benchmark, ...]
    output: Path = Path()
    cells: Path = Path()
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[Line, ...] = ()
    ablations: tuple[Line, ...] = ()
    sweeps: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    reference: str = "grpo"
    processes: int = 1
    launcher: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


def read_study(path: str | Path) -> Study:
    """Reads a study from a YAML file.

    Raises:
        StudyError: for a file that can't be read, unknown or missing keys, protocol settings in a row, or values out of
            range.
    """
    try:
        content: dict[str, Any] = {"name": Path(path).stem, **read_yaml(path, "", "methods: [grpo, align_opsd]")}
    except ValueError as error:
        raise StudyError(str(error)) from error
    output = Path(content.get("output") or Path("outputs/studies") / content["name"])
    chosen = content | {
        "output": output,
        "cells": Path(content.get("cells") or output / "cells"),
        "environments": tuple(_benchmark(one) for one in _several(content, "environments")),
        "methods": tuple(_line(one, "methods") for one in _several(content, "methods")),
        "ablations": tuple(_line(one, "ablations") for one in _several(content, "ablations")),
        "sweeps": {
            name: tuple(_several(content["sweeps"], name)) for name in _mapping(content.get("sweeps", {}), "sweeps")
        },
        "settings": _protocol(content.get("settings", {}), "settings"),
        "seeds": tuple(content.get("seeds", (0,))),
        "launcher": tuple(content.get("launcher", ())),
        "devices": tuple(map(str, content.get("devices", ()))),
    }
    study = _build(Study, chosen, str(path))
    _check(study)
    return study


def _check(study: Study) -> None:
    if not study.environments:
        raise StudyError("environments is empty; name at least one recipe, such as 'webshop_tiny'")
    if not (study.methods or study.ablations or study.sweeps):
        raise StudyError("nothing to run: give methods, ablations or sweeps")
    if not study.seeds or len(set(study.seeds)) != len(study.seeds):
        raise StudyError(f"seeds={list(study.seeds)} must name at least one seed and each once")
    if study.processes < 1 or (study.devices and len(study.devices) != study.processes):
        raise StudyError(f"processes={study.processes} must be at least 1, and devices must name one a process")
    labels = [benchmark.label for benchmark in study.environments]
    if len(set(labels)) != len(labels):
        raise StudyError(f"environments have the labels {labels}; give each its own")
    for name in study.sweeps:
        _own({name: None}, f"sweeps.{name}")


def _benchmark(content: Any) -> Benchmark:
    content: Any = {"recipe": content} if isinstance(content, str) else _mapping(content, "environments")
    recipe = content.get("recipe", "")
    try:
        preset(recipe)
    except ValueError as error:
        raise StudyError(f"environments: {error}") from error
    known = BENCHMARKS.get(recipe.partition("_")[0])
    label, averages = (known.title, dict(known.averages)) if known else (recipe, {"success": "Success"})
    benchmark = _build(Benchmark, {"label": label, "averages": averages} | content, "environments")
    if unknown := sorted(set(benchmark.averages) - set(_AVERAGES)):
        raise StudyError(f"environments: average {unknown[0]!r} is unknown; choose from {', '.join(_AVERAGES)}")
    _protocol(benchmark.settings, f"environments.{recipe}.settings")
    return benchmark


def _line(content: Any, place: str) -> Line:
    content = {"method": content} if isinstance(content, str) else _mapping(content, place)
    if place == "methods" and "method" not in content:
        raise StudyError(f"methods: {content} names no method")
    line = _build(Line, content, place)
    _own(line.settings, f"{place}.{line.title}.settings")
    return line


def _own(settings: Mapping[str, Any], place: str) -> None:
    for name in settings:
        if name not in METHOD_FIELDS:
            raise StudyError(
                f"{place}: {name!r} is part of the protocol, which all rows share; set it under the study's or the "
                f"environment's settings. A row may set {', '.join(METHOD_FIELDS)}"
            )


def _protocol(settings: Any, place: str) -> Mapping[str, Any]:
    for name in _mapping(settings, place):
        if name in _OWNED:
            raise StudyError(f"{place}: {name!r} is set by the study itself for every cell; remove it")
    return settings


def _several(content: Mapping[str, Any], name: str) -> list[Any]:
    found = content.get(name) or []
    if not isinstance(found, list):
        raise StudyError(f"{name} must be a list, got {found!r}")
    return found


def _mapping(content: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise StudyError(f"{place} must be a mapping, got {content!r}")
    return content


def _build(kind: type[Any], content: Mapping[str, Any], place: str) -> Any:
    known = {one.name: one for one in fields(kind)}
    if unknown := sorted(set(content) - set(known)):
        raise StudyError(f"{place}: key {unknown[0]!r} is unknown; known are {', '.join(known)}")
    for name, one in known.items():
        if name not in content and one.default is MISSING and one.default_factory is MISSING:
            raise StudyError(f"{place}: key {name!r} is missing")
    return kind(**content)
