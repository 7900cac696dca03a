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

from alignopsd_trl.measure.measurement import assign_credit
from alignopsd_trl.measure.metrics import agreement, reliability
from alignopsd_trl.measure.options import read_fidelity
from alignopsd_trl.measure.session import Cache, cpu_seconds, draw_tasks, identity_of, measured
from alignopsd_trl.measure.setup import prepare
from alignopsd_trl.runs.files import write_json


def measure(arguments: argparse.Namespace, newer: Sequence[str]) -> dict[str, Any]:
    """Figures of each variant's credit by how many folders further its weights are."""
    subject, bench, variants = prepare(arguments)
    with closing(bench.player.environments):
        identity = identity_of(arguments, subject, bench.player.skills_in_rollout)
        cache = Cache(arguments.output / "parts", identity, cpu_seconds)
        rows = draw_tasks(subject.tasks, arguments.tasks, arguments.seed)
        found = measured(arguments, subject, bench, variants, rows, cache)
        credit = {f"{one.label} +0": found.credit(one.label) for one in variants}
        for place, folder in enumerate(newer, 1):
            weights = AutoModelForCausalLM.from_pretrained(folder, dtype=subject.model.dtype).state_dict()
            subject.model.load_state_dict(weights)
            asked = (variants, arguments.tasks_per_batch, arguments.seed, arguments.step)
            parts = list(assign_credit(bench, found.played, *asked))
            for one in variants:
                values = np.concatenate([part.column(one.label) for part in parts])
                credit[f"{one.label} +{place}"] = values[found.known]
    first = f"{variants[0].label} +0"
    same = {label: float(np.corrcoef(credit[first], values)[0, 1]) for label, values in credit.items()}
    figures = agreement(found.turns, credit, first, arguments.seed)
    facts = {"turns": int(found.known.sum()), "tasks": found.turns.tasks, "reliability": reliability(found.turns)}
    facts |= {"rollouts": found.tree.taken, "cpu_seconds": cpu_seconds()}
    return {"command": " ".join(sys.argv), **facts, "correlation_with_first": same, "figures": figures}


def main() -> None:
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("newer", nargs="+", help="folders of weights, each after one update more")
    newer = parser.parse_args(sys.argv[1:place]).newer
    arguments = read_fidelity(sys.argv[place + 1 :])
    found = measure(arguments, newer)
    write_json(Path(arguments.output) / "staleness.json", found)
    for label, own in found["figures"].items():
        shown = {name: round(own[name].value, 3) for name in ("r_within", "r_praised", "r_blamed")}
        print(label, round(found["correlation_with_first"][label], 3), shown)


if __name__ == "__main__":
    main()
