"""Skills that do not fit: what a study's frozen teacher reads as a control (recipes/studies/distribution_control.yaml).

python -m research.another_type searchqa_hops outputs/hops_another_type.json
"""

from __future__ import annotations

import argparse
import json
from importlib import resources
from pathlib import Path


def another_type(bank: dict) -> dict:
    """Returns a bank whose task types each have the skills of the next."""
    types = bank["task_types"]
    moved = [{**one, "skills": after["skills"]} for one, after in zip(types, types[1:] + types[:1], strict=True)]
    return {**bank, "task_types": moved}


def nothing(task_text: str, task_key: str | None, data_source: str | None) -> str:
    """Tells the teacher no more than the policy."""
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bank", help="a shipped bank's name")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    shipped = resources.files("alignopsd_trl") / "data" / "skills" / f"{arguments.bank}.json"
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    bank = another_type(json.loads(shipped.read_text(encoding="utf-8")))
    arguments.output.write_text(json.dumps(bank, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
