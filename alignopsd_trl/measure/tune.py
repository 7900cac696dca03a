"""``alignopsd tune RECIPE``: measures, ranks, advises and writes ``tuned.yaml``, ``tune.json`` and ``report.md``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from alignopsd_trl.launch.errors import reported, setup
from alignopsd_trl.launch.values import json_mapping
from alignopsd_trl.measure.options import as_fidelity, read_tune
from alignopsd_trl.options import path_as_given

if TYPE_CHECKING:
    from alignopsd_trl.measure.batches import Result
    from alignopsd_trl.measure.variants import Variant

YAML = "tuned.yaml"


def command(argv: Sequence[str]) -> None:
    """Runs `main`; an error that a user can mend ends it with a short message."""
    with reported("alignopsd tune", quietly=True, resumes=""):
        main(argv)


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Prints the page, writes the files and returns the content of the JSON file."""
    given = read_tune(argv)
    shown = "alignopsd tune " + shlex.join(argv)
    from alignopsd_trl.config import AlignOPSDConfig
    from alignopsd_trl.environments.loading import load
    from alignopsd_trl.measure.batches import measure
    from alignopsd_trl.measure.setup import own_bank, prepare

    with setup():
        suite = load(given.environment, **given.environment_options)
        skilled = bool(given.skill_bank or own_bank(suite))
        asked = as_fidelity(given, skilled, AlignOPSDConfig.__dataclass_fields__)
        subject, bench, variants = prepare(asked, skilled)
    with closing(bench.player.environments):
        found = measure(asked, subject, bench, variants, skilled)
    settings = {one.label: _lines(one, variants) for one in variants}
    return _leave(given, shown, found, settings, subject.config.num_generations)


def _lines(variant: Variant, variants: Sequence[Variant]) -> dict[str, Any]:
    """Returns a variant as lines of a ``--config`` file: its method and the settings that it changes."""
    from alignopsd_trl.methods.align_opsd.options import OPTION_NAMES

    config = variant.method.config
    plain = next(one.method.config for one in variants if one.label == config.method)
    changed = {name: getattr(config, name) for name in OPTION_NAMES if getattr(config, name) != getattr(plain, name)}
    options = json_mapping("method_options", config.method_options, "{}")
    return {"method": config.method, **({"method_options": options} if options else {}), **changed}


def _leave(
    given: argparse.Namespace, shown: str, found: Result, settings: dict[str, dict[str, Any]], siblings: int
) -> dict[str, Any]:
    from alignopsd_trl.measure.ranking import EVERYTHING, advise, rank
    from alignopsd_trl.measure.tune_page import page, yaml_text
    from alignopsd_trl.runs.files import plain, write_json, write_text

    ranking = rank(found.figures, found.facts["measured_tasks"])
    lift = found.success[EVERYTHING].lift if found.success else None
    advice = advise(ranking, settings, lift, siblings)
    measured_with = {name: value for name, value in given.set.items() if "." not in name}
    if given.model != given.settings["model_name_or_path"]:
        measured_with["model_name_or_path"] = given.model
    text = page(f"Before training: {given.recipe}", shown, found, ranking, advice, given.value)
    result = {
        "command": shown,
        "recipe": given.recipe,
        **found.facts,
        "success": {name: vars(one) for name, one in found.success.items()},
        "figures": found.figures,
        "ranking": [vars(one) for one in ranking],
        "teacher_agreement": found.teacher,
        "settings": settings,
        "advice": asdict(advice),
    }
    result = plain(result)
    write_json(given.output / "tune.json", result)
    write_text(given.output / "report.md", text)
    written = yaml_text(given.recipe, "report.md", measured_with | advice.settings, advice)
    write_text(given.output / YAML, written)
    print(text)
    print(f"train with it: alignopsd train {given.recipe} --config {path_as_given(given.output / YAML)}")
    return result
