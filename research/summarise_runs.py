"""One table from the ``results.json`` files of recipe runs: gain per method over seeds, and where the time goes.

    for s in 0 1 2; do
        accelerate launch recipes/webshop_tiny.py --seed $s --output_dir outputs/align_opsd_$s
        accelerate launch recipes/webshop_tiny.py --seed $s --method grpo --output_dir outputs/grpo_$s
    done
    python -m research.summarise_runs outputs/*_[0-9]

``--keep FOLDER`` also writes the figures of each run, without machine paths and per-task outcomes, as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from alignopsd_trl.common.statistics import Mean, mean, paired

KEPT = ("before", "after", "seed", "versions", "seconds", "environment")
CURVE = ("episodes/success", "episodes/score", "episodes/turns", "entropy", "loss", "grad_norm")


def load(folders: list[Path]) -> dict[str, dict[int, dict[str, Any]]]:
    """Results by method and seed. A file that ``--keep`` wrote counts as well."""
    runs: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for folder in folders:
        path = folder if folder.is_file() else folder / "results.json"
        result = json.loads(path.read_text(encoding="utf-8"))
        method = result.get("method") or result["config"]["method"]
        runs[method][result["seed"]] = result
    return dict(runs)


def shown(value: Mean) -> str:
    return f"{value.value:.1f} ± {value.half:.1f}"


def success(result: dict[str, Any], when: str) -> float:
    return result[when]["success"]["mean"]


def share_start(runs: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Gives runs with ``--evaluate_first false`` the evaluation that another has: same policy, panel and sampling."""
    start = next(run["before"] for by_seed in runs.values() for run in by_seed.values() if run["before"])
    for by_seed in runs.values():
        for run in by_seed.values():
            same = all(run["after"][name] == start[name] for name in ("checksum", "temperature", "seed", "skills"))
            run["before"] = run["before"] or (start if same else None)


def gains(runs: dict[str, dict[int, dict[str, Any]]]) -> str:
    lines = [
        "| method | before | after, per seed | after | gain | paired to grpo |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    after = {method: {seed: success(run, "after") for seed, run in by.items()} for method, by in runs.items()}
    for method, by_seed in runs.items():
        gain = mean([success(run, "after") - success(run, "before") for run in by_seed.values()])
        other = paired(after[method], after["grpo"]) if method != "grpo" and "grpo" in after else None
        before = mean([success(run, "before") for run in by_seed.values()])
        each = ", ".join(f"{after[method][seed]:.1f}" for seed in sorted(by_seed))
        cells = [method, f"{before.value:.1f}", each, shown(mean(list(after[method].values()))), shown(gain)]
        lines.append(f"| {' | '.join([*cells, shown(other) if other else ''])} |")
    return "\n".join(lines)


def phases(runs: dict[str, dict[int, dict[str, Any]]]) -> str:
    names = sorted({name for by in runs.values() for run in by.values() for name in run["seconds"]["phases"]})
    lines = [f"| seconds an update | {' | '.join([*names, 'whole'])} |", "| --- |" + " --- |" * (len(names) + 1)]
    for method, by_seed in runs.items():
        cells = []
        for name in names:
            each = [run["seconds"]["phases"].get(name, 0.0) / _updates(run) for run in by_seed.values()]
            cells.append(f"{mean(each).value:.1f}")
        whole = mean([run["seconds"]["per_update"] for run in by_seed.values()])
        lines.append(f"| {' | '.join([method, *cells, f'{whole.value:.1f}'])} |")
    return "\n".join(lines)


def _updates(run: dict[str, Any]) -> float:
    return run["seconds"]["training"] / run["seconds"]["per_update"]


def trimmed(method: str, result: dict[str, Any]) -> dict[str, Any]:
    kept = {name: result[name] for name in KEPT}
    for when in ("before", "after"):
        kept[when] = {name: value for name, value in kept[when].items() if name != "outcomes"}
    curve = [{name: entry[name] for name in CURVE if name in entry} for entry in result["history"] if "loss" in entry]
    return {"method": method, **kept, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    runs = load(arguments.folders)
    share_start(runs)
    print(gains(runs), phases(runs), sep="\n\n")
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        for method, by_seed in runs.items():
            for seed, result in by_seed.items():
                path = arguments.keep / f"{method}_{seed}.json"
                path.write_text(json.dumps(trimmed(method, result), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
