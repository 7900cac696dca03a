"""``alignopsd tune RECIPE``: measures, ranks, advises and writes ``tuned.yaml``, ``tune.json`` and ``report.md``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from alignopsd_trl.launch.errors import reported, setup
from alignopsd_trl.launch.values import json_mapping
from alignopsd_trl.tune.arguments import as_fidelity, read_command

if TYPE_CHECKING:
    from alignopsd_trl.fidelity.variants import Variant
    from alignopsd_trl.tune.measuring import Found

YAML = "tuned.yaml"


def command(argv: Sequence[str] | None = None) -> None:
    """`main` as a command of its own: what a user can mend is told in a few lines."""
    with reported("alignopsd tune", quietly=True, resumes=""):
        main(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Prints the page, leaves the files and returns what is in the JSON file."""
    given = read_command(argv)
    shown = "alignopsd tune " + shlex.join(map(str, sys.argv[1:] if argv is None else argv))
    from alignopsd_trl.config import AlignOPSDConfig
    from alignopsd_trl.environments.loading import load
    from alignopsd_trl.fidelity.__main__ import prepare
    from alignopsd_trl.fidelity.setup import own_bank
    from alignopsd_trl.tune.measuring import measure

    with setup():
        suite = load(given.settings["environment"], **given.environment_options)
        skilled = bool(given.skill_bank or own_bank(suite))
        asked = as_fidelity(given, skilled, AlignOPSDConfig.__dataclass_fields__)
        subject, bench, variants = prepare(asked, skilled)
    with closing(bench.player.environments):
        found = measure(given, asked, subject, bench, variants, skilled)
    settings = {one.label: _lines(one, variants) for one in variants}
    return _leave(given, shown, found, settings, subject.config.num_generations)


def _lines(variant: Variant, variants: Sequence[Variant]) -> dict[str, Any]:
    """A variant as lines of a ``--config`` file: its method, and what it has otherwise than that as configured."""
    from alignopsd_trl.methods.align_opsd.options import OPTION_NAMES

    config = variant.method.config
    plain = next(one.method.config for one in variants if one.label == config.method)
    changed = {name: getattr(config, name) for name in OPTION_NAMES if getattr(config, name) != getattr(plain, name)}
    options = json_mapping("method_options", config.method_options, "{}")
    return {"method": config.method, **({"method_options": options} if options else {}), **changed}


def _leave(
    given: argparse.Namespace, shown: str, found: Found, settings: dict[str, dict[str, Any]], siblings: int
) -> dict[str, Any]:
    from alignopsd_trl.runs.files import plain, write_json, write_text
    from alignopsd_trl.tune.page import page, yaml_text
    from alignopsd_trl.tune.ranking import EVERYTHING, advise, rank

    ranking = rank(found.figures, found.facts["measured_tasks"])
    lift = found.success[EVERYTHING].lift if found.success else None
    advice = advise(ranking, settings, lift, siblings)
    measured_with = {name: value for name, value in given.own.items() if "." not in name}
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
    print(f"train with it: alignopsd train {given.recipe} --config {given.output / YAML}")
    return result


if __name__ == "__main__":
    command()
