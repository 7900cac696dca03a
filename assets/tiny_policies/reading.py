"""Does a policy read its skill? Success by the kind of task and the kind of skill in the prompt.

    python -m assets.tiny_policies.reading --tasks 100 --output research/results/webshop_trips/reading.json
    python -m assets.tiny_policies.reading --environment searchqa_hops --tasks 160 \
        --output research/results/searchqa_hops/reading.json

Each cell plays the same test tasks of one kind, with no skill or with one kind's skills in every prompt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.commands.launch.presets import preset
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.environments.loading import load
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.rollout.episode import SkillSource
from alignopsd_trl.skills import SkillBank, skill_source

WORLDS = ("webshop_trips", "searchqa_hops", "alfworld_pairs")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", choices=WORLDS, default=WORLDS[0])
    parser.add_argument("--model", help="shipped name or path; the environment's own")
    parser.add_argument("--tasks", type=int, default=100, help="test tasks, a quarter of each kind")
    parser.add_argument("--temperature", type=float, help="the preset's")
    parser.add_argument("--skills", help="columns: none and kinds; all of them")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(argv)
    chosen, suite = preset(arguments.environment), load(arguments.environment)
    name, kinds = arguments.model or chosen["model_name_or_path"], suite.categories
    temperature = chosen["eval_temperature"] if arguments.temperature is None else arguments.temperature
    path = resolve_model(name)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
    source = skill_source(SkillBank.load(suite.skill_bank), tokenizer, chosen["skill_tokens"])
    panel, cells, turns = suite.panel("test").head(arguments.tasks), {}, {}
    for skill in (arguments.skills or ",".join(("none", *kinds))).split(","):
        limits = {name: chosen[name] for name in ("max_prompt_length", "max_completion_length")}
        sampling = {"temperature": temperature, "batch_size": 100, "skills": always(source, skill)}
        result, _ = evaluate(model, tokenizer, suite.factory, panel, **sampling, **limits)
        cells[skill] = {kind: row["success"] for kind, row in result.to_dict()["categories"].items()}
        turns[skill] = round(result.turns, 2)
    found = {"model": name, "temperature": temperature, "panel": panel.checksum, "cells": cells, "turns": turns}
    found["summary"] = summary(cells, kinds)
    show(found)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def always(source: SkillSource, kind: str) -> SkillSource | None:
    """The skills of one kind, whatever the task."""
    return None if kind == "none" else lambda task_text, task_key, data_source: source(task_text, kind, data_source)


def summary(cells: dict[str, dict[str, Any]], kinds: Sequence[str]) -> dict[str, float]:
    """Mean success over kinds without a skill, with the one that fits, and with another."""
    chosen = {
        "none": [cells["none"][kind]["mean"] for kind in kinds] if "none" in cells else [],
        "own": [cells[kind][kind]["mean"] for kind in kinds if kind in cells],
        "other": [cells[skill][kind]["mean"] for kind in kinds for skill in kinds if skill in cells and skill != kind],
    }
    return {name: sum(values) / len(values) for name, values in chosen.items() if values}


def show(found: dict[str, Any]) -> None:
    table = Table("task", *found["cells"], title=f"success in %, temperature {found['temperature']}")
    for kind in next(iter(found["cells"].values())):
        cells = [cell[kind] for cell in found["cells"].values()]
        table.add_row(kind, *(f"{one['mean']:.0f} [{one['low']:.0f}, {one['high']:.0f}]" for one in cells))
    console = Console()
    console.print(table)
    console.print("  ".join(f"{name}: {value:.1f} %" for name, value in found["summary"].items()))


if __name__ == "__main__":
    main()
