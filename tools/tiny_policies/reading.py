"""Does a policy read its skill? Success on trips by the kind of trip and the kind of skill in the prompt.

    python -m tools.tiny_policies.reading --tasks 100 --output docs/results/webshop_trips/reading.json

Each cell plays the same test trips of one kind, with no skill or with one kind's skills in every prompt.
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

from alignopsd_trl.evaluation import evaluate
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.policy.shipped import resolve_model
from alignopsd_trl.policy.teacher import skill_source
from alignopsd_trl.rollout import SkillSource
from alignopsd_trl.skills import SkillBank
from environments.base import load
from environments.webshop.trips import KINDS


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny_trips", help="shipped name or path")
    parser.add_argument("--tasks", type=int, default=100, help="test trips, a quarter of each kind")
    parser.add_argument("--temperature", type=float, default=preset("webshop_trips")["eval_temperature"])
    parser.add_argument("--skills", default=f"none,{','.join(KINDS)}", help="columns: none and kinds")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(argv)
    chosen, suite = preset("webshop_trips"), load("webshop_trips")
    path = resolve_model(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
    source = skill_source(SkillBank.load("webshop_trips"), tokenizer, chosen["skill_tokens"])
    panel, cells = suite.panel("test").head(arguments.tasks), {}
    for skill in arguments.skills.split(","):
        limits = {name: chosen[name] for name in ("max_prompt_length", "max_completion_length")}
        sampling = {"temperature": arguments.temperature, "batch_size": 100, "skills": always(source, skill)}
        result, _ = evaluate(model, tokenizer, suite.factory, panel, **sampling, **limits)
        cells[skill] = {kind: row["success"] for kind, row in result.to_dict()["categories"].items()}
    found = {"model": arguments.model, "temperature": arguments.temperature, "panel": panel.checksum, "cells": cells}
    found["summary"] = summary(cells)
    show(found)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def always(source: SkillSource, kind: str) -> SkillSource | None:
    """The skills of one kind, whatever the task."""
    return None if kind == "none" else lambda task_text, task_key, data_source: source(task_text, kind, data_source)


def summary(cells: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Mean success over kinds without a skill, with the one that fits, and with another."""
    chosen = {
        "none": [cells["none"][kind]["mean"] for kind in KINDS] if "none" in cells else [],
        "own": [cells[kind][kind]["mean"] for kind in KINDS if kind in cells],
        "other": [cells[skill][kind]["mean"] for kind in KINDS for skill in KINDS if skill in cells and skill != kind],
    }
    return {name: sum(values) / len(values) for name, values in chosen.items() if values}


def show(found: dict[str, Any]) -> None:
    table = Table("trip", *found["cells"], title=f"success in %, temperature {found['temperature']}")
    for kind in KINDS:
        cells = [cell[kind] for cell in found["cells"].values()]
        table.add_row(kind, *(f"{one['mean']:.0f} [{one['low']:.0f}, {one['high']:.0f}]" for one in cells))
    console = Console()
    console.print(table)
    console.print("  ".join(f"{name}: {value:.1f} %" for name, value in found["summary"].items()))


if __name__ == "__main__":
    main()
