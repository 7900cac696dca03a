"""What credit is worth that newer weights than the sampler's assigned: its agreement with Monte Carlo advantages.

    alignopsd train webshop_tiny --max_steps 2 --save_strategy steps --save_steps 1 --output_dir outputs/two
    python -m research.staleness outputs/two/checkpoint-1 outputs/two/checkpoint-2 -- --model tiny \
        --environment webshop_tiny --methods align_opsd --tasks 4 --rollouts 6 --output outputs/staleness

Episodes and Monte Carlo rollouts are those of ``--model``. Turns get credit from its weights, and from those of each
folder in its turn: thinking, teacher's view and policy's view alike, as in training with `rounds_ahead`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM

from alignopsd_trl.common.files import write_json
from alignopsd_trl.measure.commands import read_measure
from alignopsd_trl.measure.measurement import Cache, assign_credit, cpu_seconds, measured
from alignopsd_trl.measure.metrics import agreement, credit_of, measured_rows, reliability, turns_of
from alignopsd_trl.measure.setup import prepare


def measure(arguments: argparse.Namespace, newer: Sequence[str]) -> dict[str, Any]:
    """Figures of each variant's credit by how many folders further its weights are."""
    session = prepare(arguments)
    with closing(session.player.environments):
        cache = Cache(arguments.output / "parts", session.identity())
        found = measured(session, session.draw_tasks(arguments.tasks), cache)
        known = measured_rows([found.table])
        credit = {f"{label} +0": values for label, values in credit_of(known).items()}
        for place, folder in enumerate(newer, 1):
            weights = AutoModelForCausalLM.from_pretrained(folder, dtype=session.model.dtype).state_dict()
            session.model.load_state_dict(weights)
            again = credit_of(measured_rows([assign_credit(session, found.tree)]))
            credit |= {f"{label} +{place}": values for label, values in again.items()}
    turns = turns_of(known)
    first = f"{next(iter(session.variants))} +0"
    same = {label: float(np.corrcoef(credit[first], values)[0, 1]) for label, values in credit.items()}
    figures = agreement(turns, credit, first, arguments.seed)
    facts = {"turns": len(known), "tasks": turns.tasks, "reliability": reliability(turns)}
    facts |= {"rollouts": found.tree.taken, "cpu_seconds": cpu_seconds()}
    return {"command": " ".join(sys.argv), **facts, "correlation_with_first": same, "figures": figures}


def main() -> None:
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("newer", nargs="+", help="folders of weights, each after one update more")
    newer = parser.parse_args(sys.argv[1:place]).newer
    arguments = read_measure(sys.argv[place + 1 :])
    found = measure(arguments, newer)
    write_json(Path(arguments.output) / "staleness.json", found)
    for label, own in found["figures"].items():
        shown = {name: round(own[name].value, 3) for name in ("r_within", "r_praised", "r_blamed")}
        print(label, round(found["correlation_with_first"][label], 3), shown)


if __name__ == "__main__":
    main()
