"""Holds A_MC of a measurement against plain walks by other code: nothing pooled, nothing backed up, no tree.

    alignopsd measure --model tiny --environment webshop_tiny --methods grpo --tasks 4 --rollouts 12 \
        --output outputs/fidelity
    python -m research.plain_walks outputs/fidelity --model tiny --environment webshop_tiny --walks 60 \
        --output plain_walks.json

Of some turns drawn from the measured ones, the episode is replayed to the state before and to the state after, and
transformers' ``generate`` plays on from each so many times. For environments that say who won, with a text prompt that
fits, actions that `project` reads and the default limit of turns. Where both errors are what they are said to be, the
mean squared difference over them is 1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.progress import track
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.environments import Record, TextEnvironment, View, load
from alignopsd_trl.rollout.siblings import episode_seed


class Policy:
    """A model that answers texts.

    Args:
        said: settings of the measurement.
    """

    def __init__(self, model: str, said: dict[str, Any]):
        path = resolve_model(model)
        self._model, self._tokenizer = (
            AutoModelForCausalLM.from_pretrained(path).eval(),
            AutoTokenizer.from_pretrained(path),
        )
        self._tokenizer.padding_side = "left"
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token
        self._longest = said["max_prompt_length"]
        options = {name: said[name] for name in ("temperature", "top_p", "top_k")}
        self._options = {"do_sample": True, "max_new_tokens": said["max_completion_length"], **options}

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> list[str]:
        chats = [[{"role": "user", "content": text}] for text in texts]
        inputs = self._tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        if inputs["input_ids"].size(1) > self._longest:
            raise SystemExit(f"a prompt has more than the {self._longest} tokens that the measurement allowed")
        sampled = self._model.generate(**inputs, **self._options)
        return self._tokenizer.batch_decode(sampled[:, inputs["input_ids"].size(1) :], skip_special_tokens=True)


class Walker:
    """An episode that stands behind some actions."""

    def __init__(self, environment: TextEnvironment, row: dict[str, Any], seed: int, actions: Sequence[str]):
        self._environment, self._records, self.won = environment, [], None
        opening = environment.reset(**{"dynamics_seed": seed, **row})
        self._task, self._context = opening.task_text, opening.context
        self._seen, self._admissible = opening.observation, opening.admissible
        for action in actions:
            self.act(action)

    def text(self) -> Any:
        shown = tuple(self._records[-self._environment.history_length :])
        view = View(self._task, self._seen, self._admissible, shown, len(self._records), self._context)
        return self._environment.prompt.render(view, "")

    def answer(self, response: str) -> None:
        self.act(self._environment.project(response, self._admissible).action)

    def act(self, action: str) -> None:
        step = self._environment.step(action)
        self._records.append(Record(len(self._records) + 1, self._seen, action, step.observation))
        self._seen, self._admissible = step.observation, step.admissible
        if step.done or len(self._records) >= self._environment.max_turns:
            self.won = bool(step.won)


def outcomes(policy: Policy, walkers: Sequence[Walker]) -> np.ndarray:
    """``(walkers,)`` who wins when the policy plays on."""
    while live := [one for one in walkers if one.won is None]:
        for walker, response in zip(live, policy([one.text() for one in live]), strict=True):
            walker.answer(response)
    return np.array([one.won for one in walkers], dtype=float)


def plain(
    turns: pd.DataFrame, chosen: pd.DataFrame, policy: Policy, suite: Any, settings: dict[str, Any], walks: int
) -> pd.DataFrame:
    """The chosen turns with A_MC of so many plain walks from before and from behind each, and its error."""
    rows = {row["task_id"]: dict(row) for row in suite.tasks(settings["split"])}
    environments = [suite.factory() for _ in range(walks)]
    episodes = {key: one.sort_values("turn") for key, one in turns.groupby(["task", "rollout"])}
    found = []
    for one in track(chosen.to_dict("records"), "plain walks"):
        actions = list(episodes[one["task"], one["rollout"]].action)
        seed = episode_seed(one["task"], settings["seed"], int(one["rollout"]))
        sides = []
        for count in (one["turn"], one["turn"] + 1):
            if count == len(actions):
                sides.append((float(one["won"]), 0.0))
                continue
            start = [Walker(each, rows[one["task"]], seed, actions[:count]) for each in environments]
            won = outcomes(policy, start)
            sides.append((won.mean(), (won.mean() * (1 - won.mean()) + 0.25 / walks) / walks))
        (before, doubt), (after, doubt_after) = sides
        found.append({"plain": after - before, "plain_error": (doubt + doubt_after) ** 0.5})
    return pd.concat([chosen.reset_index(drop=True), pd.DataFrame(found)], axis=1)


def agreement(both: pd.DataFrame) -> dict[str, Any]:
    difference = both.a_mc - both.plain
    squared = difference**2 / (both.a_mc_error**2 + both.plain_error**2)
    return {
        "turns": len(both),
        "correlation": float(np.corrcoef(both.a_mc, both.plain)[0, 1]),
        "squared_difference_over_errors": float(squared.mean()),
        "mean_difference": float(difference.mean()),
        "its_error": float(difference.std(ddof=1) / len(both) ** 0.5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output of a measurement")
    parser.add_argument("--model", required=True, help="as measured")
    parser.add_argument("--environment", required=True, help="as measured")
    parser.add_argument("--turns", type=int, default=60, help="that are held against plain walks")
    parser.add_argument("--walks", type=int, default=60, help="from either side of a turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args()
    said = json.loads((arguments.folder / "fidelity.json").read_text(encoding="utf-8"))
    settings = said["identity"]
    turns = pd.read_parquet(arguments.folder / "turns.parquet")
    measured = turns[turns.a_mc.notna() & turns.a_mc_error.notna()]
    chosen = measured.sample(min(arguments.turns, len(measured)), random_state=arguments.seed)
    torch.manual_seed(arguments.seed)
    policy = Policy(arguments.model, settings)
    suite = load(arguments.environment, **settings["environment_options"])
    result = agreement(plain(turns, chosen, policy, suite, settings, arguments.walks))
    result["settings"] = {"measured": said["command"].strip(), "walks": arguments.walks, "seed": arguments.seed}
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
