"""How well encoders tell decisions apart: AUC of pairs of the same decision against pairs of another one.

    python -m research.encoders --encoders lexical,tiny_situated --output research/results/encoders.json

Pairs are of siblings on test tasks that no encoder was trained on: thoughts of scripted shoppers and of the shipped
policies. Most pairs are easy, being about other requests or pages; "near" pairs share request and kind of page, or have
come equally far on the way of a question, or have delivered the same things. Beside their AUC: the shares of them that
reach the paper's gamma_H = 0.8, which AlignOPSD matches rightly and wrongly.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.encoder import Encoder, load_encoder
from alignopsd_trl.environments.loading import load
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
from assets.encoder.thoughts import WORLDS, Thoughts, of_policy

THRESHOLD = AlignOPSDOptions().similarity_threshold
LINE = (
    "{thoughts:26} {encoder:8} AUC {auc:.3f} {auc_interval}, near {near:.3f} {near_interval}; "
    "at .8 or above: same {matched_same:.2f}, other {matched_other:.2f}"
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = "lexical,tiny,tiny_situated"
    parser.add_argument("--encoders", default=known, help="names, ids or paths, separated by commas")
    parser.add_argument("--tasks", type=int, default=40, help="sibling groups of each world and player")
    parser.add_argument("--resamples", type=int, default=200, help="of tasks, for the intervals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON")
    parser.add_argument("--worlds", default=",".join(WORLDS), help="names, separated by commas")
    arguments = parser.parse_args(argv)
    encoders = {name: load_encoder(name) for name in arguments.encoders.split(",")}
    rows = []
    for place, groups in held_out(arguments.worlds.split(","), arguments.tasks, arguments.seed).items():
        for name, encoder in encoders.items():
            rows.append({"thoughts": place, "encoder": name, **figures(groups, encoder, arguments.resamples)})
            print(LINE.format(**rows[-1]))
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def held_out(worlds: Sequence[str], tasks: int, seed: int) -> dict[str, list[Thoughts]]:
    """Thoughts on the first test tasks of each world: of scripted shoppers, and of the policy that its recipe starts
    from."""
    found = {}
    for name in worlds:
        play, decision = WORLDS[name]
        suite, chosen = load(name), preset(name)
        rows = suite.panel("test").rows[:tasks]
        found[f"{name}, scripted"] = list(play(suite, rows, seed))
        path = resolve_model(chosen["model_name_or_path"])
        model = AutoModelForCausalLM.from_pretrained(path).eval()
        limits = {limit: chosen[limit] for limit in ("max_prompt_length", "max_completion_length")}
        tokenizer = AutoTokenizer.from_pretrained(path)
        found[f"{name}, its policy"] = list(of_policy(model, tokenizer, suite, rows, decision, **limits))
    return found


def figures(groups: Sequence[Thoughts], encoder: Encoder, resamples: int) -> dict[str, Any]:
    """AUC over all pairs of siblings and over near ones (see above), with 95 %
    intervals from resampling tasks, and the shares of near pairs that match."""
    parts = [scored(group, encoder) for group in groups]
    same, cosine, near = (np.concatenate([part[side] for part in parts]) for side in range(3))
    return {
        **{"auc": area(parts, range(len(parts)), False), "auc_interval": interval(parts, resamples, False)},
        **{"near": area(parts, range(len(parts)), True), "near_interval": interval(parts, resamples, True)},
        "matched_same": float((cosine[near & same] >= THRESHOLD).mean()),
        "matched_other": float((cosine[near & ~same] >= THRESHOLD).mean()),
        "pairs": len(same),
        "near_pairs": int(near.sum()),
        "tasks": len(parts),
    }


def area(parts: Sequence[tuple[np.ndarray, ...]], chosen: Sequence[int], near: bool) -> float:
    same, cosine = (np.concatenate([parts[one][side][parts[one][2] | (not near)] for one in chosen]) for side in (0, 1))
    return float(roc_auc_score(same, cosine))


def interval(parts: Sequence[tuple[np.ndarray, ...]], resamples: int, near: bool) -> list[float]:
    draw = np.random.default_rng(0)
    drawn = [area(parts, draw.integers(len(parts), size=len(parts)), near) for _ in range(resamples)]
    return [round(float(bound), 3) for bound in np.quantile(drawn, (0.025, 0.975))]


def scored(group: Thoughts, encoder: Encoder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of all pairs of turns of two siblings: whether the decision is the same, the cosine of the thoughts, and whether
    request and kind of page are the same."""
    rows, (left, right) = encoder(group.texts), np.triu_indices(len(group.texts), 1)
    siblings = np.array(group.siblings)
    apart = siblings[left] != siblings[right]
    left, right = left[apart], right[apart]
    decision = np.unique(["|".join(one) for one in group.decisions], return_inverse=True)[1]
    place = np.unique(["|".join(one[:2]) for one in group.decisions], return_inverse=True)[1]
    return decision[left] == decision[right], (rows @ rows.T).numpy()[left, right], place[left] == place[right]


if __name__ == "__main__":
    main()
