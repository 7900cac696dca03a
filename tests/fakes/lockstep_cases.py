"""Plays with fixed seeds, whose records were captured when all episodes still waited for each other at each turn.

``python tests/fakes/lockstep_cases.py FILE`` writes them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from fakes.corridor import DEPTH, Flips, SeededCorridor, corridor_tasks
from fakes.corridor import player as corridor_player
from fakes.plays import play_with
from fakes.toy import Scripted, ToyEnvironment, build_model, build_tokenizer, toy_dataset
from transformers import AutoTokenizer

from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.environments.base import Opening, Step
from alignopsd_trl.environments.loading import load
from alignopsd_trl.rollout.episode import episode_seeds
from alignopsd_trl.sampling.loop import LoopSampler
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.turns import Trajectory

GOLDEN = Path(__file__).parents[1] / "data" / "rollout" / "lockstep.json"
POLICIES = {"webshop_tiny": "tiny", "alfworld_pairs": "tiny_pairs", "searchqa_tiny": "tiny_searchqa"}
WAYS = {
    "webshop_tiny": (r"\b[b-z0-9]{10}\b", "click[{}]", ["click[buy now]", "search[{}]", "click[< prev]"]),
    "alfworld_pairs": (r"\b[a-z]+ \d+", "go to {}", ["take {} from {}", "look", "inventory"]),
    "searchqa_tiny": (r"\b[a-z]{5,}\b", "<search>{}</search>", ["<answer>{}</answer>", "<search></search>"]),
}


def acting(suite: str, tokenizer: Any) -> Callable[[list[list[int]]], tuple[list[list[int]], None]]:
    """Responses that are a function of the prompt alone: things that it names, put into actions."""
    pattern, usual, others = WAYS[suite]

    def respond(ids: list[int]) -> list[int]:
        text = tokenizer.decode(ids)
        digest = hashlib.sha256(text.encode()).digest()
        named = re.findall(pattern, text.lower()) or ["curtain"]
        words = [named[number % len(named)] for number in digest[:2]]
        action = (usual if digest[2] % 3 else others[digest[3] % len(others)]).format(*words)
        tagged = action if "<" in usual or digest[4] % 16 == 0 else f"<action>{action}</action>"
        response = tokenizer(f"<think>{words[0]}</think>{tagged}", add_special_tokens=False)["input_ids"]
        return [*response, tokenizer.eos_token_id]

    return lambda prompts: ([respond(ids) for ids in prompts], None)


class Faulty(ToyEnvironment):
    """Raises, hangs beyond the time limit, returns nonsense or refuses to open, each in an episode of its own."""

    concurrent = True  # so that hanging episodes hang together

    def reset(self, task_id: str, **columns: Any) -> Opening:
        self._task = task_id
        if task_id == "toy/5":
            raise OSError("no door")
        return super().reset(task_id, **columns)

    def step(self, action: str) -> Step:
        if self._task == "toy/1":
            raise KeyError("door")
        if self._task == "toy/2" and self._turns:
            time.sleep(2.5)
        return cast("Step", None) if self._task == "toy/3" else super().step(action)


def play_suite(name: str) -> list[Trajectory]:
    suite, tokenizer = load(name), AutoTokenizer.from_pretrained(SHIPPED_MODELS[POLICIES[name]])
    rows = [row for row in suite.panel("test").rows[:5] for _ in range(2)]
    limits = {"max_prompt_length": 400, "max_turns": min(7, suite.factory().max_turns)}
    sampler = Scripted(acting(name, tokenizer))
    return play_with(sampler, suite.factory, rows, tokenizer, siblings=2, time_limit=60.0, **limits)


def hint(task_text: str, task_key: Any, data_source: Any) -> tuple[str, tuple[str, ...]]:
    return "always seek " + task_text, ("hint",)


def play_toy(factory: Any = ToyEnvironment, privileged: int = 0, skilled: bool = True) -> list[Trajectory]:
    """A model of random weights; privileged siblings are played by another one."""
    tokenizer, rows = build_tokenizer(), [row for row in toy_dataset(6) for _ in range(3)]
    models = [build_model(tokenizer, seed).eval() for seed in (0, 1)]
    samplers = [LoopSampler(PrefixCache(model, 0), 1.0, 12, [2]) for model in models]
    torch.manual_seed(5)
    given: dict[str, Any] = {"max_prompt_length": 128, "skills": hint, "skills_in_rollout": skilled}
    given |= {"privileged_siblings": privileged, "teacher": samplers[1] if privileged else None}
    return play_with(samplers[0], factory, rows, tokenizer, siblings=3, step=3, time_limit=2.0, **given)


def play_prefixes() -> list[Trajectory]:
    """A policy that draws a number for each prompt in the prompts' order."""
    rows = [*corridor_tasks(6)] * 2
    paths = [["right"] * (number % (DEPTH + 1)) for number in range(len(rows))]
    seeds = [episode_seeds(row["task_id"], 0, place) for place, row in enumerate(rows)]
    return corridor_player(Flips(), SeededCorridor).play(rows, seeds, [row["task_id"] for row in rows], paths)


class Together:
    """What several threads, which stand for processes, tell one another."""

    def __init__(self, count: int):
        self._values: list[Any] = [None] * count
        self._barrier = threading.Barrier(count)

    def each(self, process: int, value: Any) -> list[Any]:
        self._values[process] = value
        self._barrier.wait(60)
        found = list(self._values)
        self._barrier.wait(60)
        return found

    def agree(self, process: int, number: int) -> int:
        return max(self.each(process, number))


def on_processes(count: int, act: Callable[[int, Callable[[int], int]], Any]) -> list[Any]:
    """What ``act(process, agree)`` gives on each of several threads; ``agree.each`` has the values of all."""
    together, found = Together(count), [None] * count

    def run(process: int) -> None:
        try:
            agree: Any = partial(together.agree, process)
            agree.each = partial(together.each, process)
            found[process] = act(process, agree)
        except Exception as error:
            found[process] = error

    threads = [threading.Thread(target=run, args=[process]) for process in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def play_processes() -> list[Trajectory]:
    """Shares of unequal length: a process that has played all goes on to sample with the other."""
    rows = corridor_tasks(9)

    def play(process: int, agree: Callable[[int], int]) -> list[Trajectory]:
        own = rows[:2] if process else rows
        paths = [["left", "left"][: 2 * process]] * len(own)
        sampler = Flips(process)
        player = corridor_player(sampler)
        player.agree = agree
        seeds = [episode_seeds(row["task_id"], 0, place) for place, row in enumerate(own)]
        played = player.play(own, seeds, [row["task_id"] for row in own], paths)
        played[0].message = str(sampler.calls)
        return played

    return [one for part in on_processes(2, play) for one in part]


CASES: dict[str, Callable[[], list[Trajectory]]] = {
    **{name: partial(play_suite, name) for name in POLICIES},
    "faults": partial(play_toy, Faulty),
    "privileged": partial(play_toy, ToyEnvironment, 1, False),
    "prefixes": play_prefixes,
    "processes": play_processes,
}


def shown(played: list[Trajectory]) -> list[dict[str, Any]]:
    """All that trajectories hold, messages without line numbers. Log-probs differ in their last digits by processor and
    by torch's version; only how many there are is told."""
    found = [asdict(one) for one in played]
    for one in found:
        one["message"] = re.sub(r"\(\w+\.py, line \d+\)", "", one["message"])
        for turn in one["turns"]:
            assert turn.pop("staleness") == 0  # younger than the captured files
            assert [turn.pop(name) for name in ("privileged_text", "shown")] == [None, None]  # as well
            del turn["row"], turn["milestone"]  # as well
            values = turn["sampling_log_probs"]
            turn["sampling_log_probs"] = values and len(values)
    return json.loads(json.dumps(found, default=str))


def digests(played: list[Trajectory]) -> list[list[Any]]:
    """Of each episode: its number of turns, why it ended, its reward, a digest of all that it holds but log-probs, and
    these."""
    return [
        [
            len(one["turns"]),
            one["stop"],
            one["reward"],
            hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()[:16],
            [round(value, 5) for turn in episode.turns for value in turn.sampling_log_probs or ()],
        ]
        for episode, one in zip(played, shown(played), strict=True)
    ]


if __name__ == "__main__":
    captured = {name: digests(play()) for name, play in CASES.items()}
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, one)) + "\n]" for name, one in captured.items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
