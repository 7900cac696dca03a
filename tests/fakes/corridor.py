"""Games whose values are known: a corridor of coin flips, with a policy of known probabilities over it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from fakes.toy import build_model, build_tokenizer

from alignopsd_trl.environments.base import Opening, Projection, Step, Suite, TextEnvironment, View
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.sampler import Responses

LEFT = 0.4  # probability of "left" at every turn of the policy `flips`
DEPTH = 3


class Prompt:
    name = "corridor"

    def render(self, view: View, skill: str = "") -> str:
        lines = ["you seek " + view.task_text, *([skill] if skill else [])]
        return "\n".join([*lines, *(f"action {record.action}" for record in view.history), view.observation])


class Corridor(TextEnvironment):
    """Three turns of left or right; won with at least ``need`` rights. ``noise`` breaks determinism on purpose."""

    prompt = Prompt()
    history_length = 8
    max_turns = DEPTH
    noise = ""

    def reset(self, task_id: str, need: int, **columns: Any) -> Opening:
        self._need, self._rights, self._turns = need, 0, 0
        text = f"the number {'zero one two three'.split()[need]}"
        return Opening("you are at zero" + self._noise("reset"), text)

    def step(self, action: str) -> Step:
        self._turns += 1
        self._rights += action == "right"
        done, won = self._turns == DEPTH, self._rights >= self._need
        seen = "zero one two three".split()[self._rights]
        return Step(f"you are at {seen}" + self._noise("step"), float(won and done), done, won and done, float(won))

    def _noise(self, place: str) -> str:
        return (
            f" {random.SystemRandom().choice('zero one two three four five six'.split())}"
            if place == self.noise
            else ""
        )

    def project(self, response: str, admissible: Any = None) -> Projection:
        start, end = response.find("<action>"), response.find("</action>")
        return Projection(response[start + 8 : end].strip(), start >= 0)


class NoisyCorridor(Corridor):
    noise = "step"


class KnowingCorridor(Corridor):
    """Says when it can't be won any more."""

    def step(self, action: str) -> Step:
        return replace(super().step(action), lost=self._rights + DEPTH - self._turns < self._need)


class SilentCorridor(Corridor):
    """Does not say who won."""

    def step(self, action: str) -> Step:
        return replace(super().step(action), won=None)


class SeededCorridor(Corridor):
    """Opens alike and shows its own seed at the first step: chance that siblings do not share."""

    def reset(self, task_id: str, need: int, dynamics_seed: int, **columns: Any) -> Opening:
        self._seed = dynamics_seed
        return super().reset(task_id, need)

    def step(self, action: str) -> Step:
        step = super().step(action)
        return replace(step, observation=f"{step.observation} {self._seed}")


class Climb(Corridor):
    """Ends at the first left, or after six turns. Good episodes are long, and the first rights are worth most."""

    max_turns = 2 * DEPTH

    def step(self, action: str) -> Step:
        self._turns += 1
        self._rights += action == "right"
        done = action == "left" or self._turns == self.max_turns
        reward = 1 - 0.4**self._rights if done else 0.0
        seen = "zero one two three four five six".split()[self._rights]
        return Step(f"you are at {seen}", reward, done, None, reward)


class BrokenCorridor(Corridor):
    def reset(self, task_id: str, need: int, **columns: Any) -> Opening:
        raise OSError("the door is stuck")


GAMES = {"noisy": NoisyCorridor, "silent": SilentCorridor, "broken": BrokenCorridor}


def corridor_tasks(count: int = 6) -> list[dict[str, Any]]:
    return [{"task_id": f"corridor/{number}", "need": 1 + number % 2} for number in range(count)]


def suite(**options: Any) -> Suite:
    rows = corridor_tasks(int(options.get("tasks", 12)))
    factory = next((game for name, game in GAMES.items() if options.get(name)), Corridor)
    panel = TaskPanel.of("corridor", "test", rows)
    bank = None if options.get("unskilled") else "webshop"
    return Suite(
        "corridor", factory, lambda split: Dataset.from_list(rows), lambda name: panel, (), dict(options), bank
    )


def value(path: Sequence[str], need: int) -> float:
    """Exact V after the actions of a path, under `flips`."""
    left = DEPTH - len(path)
    missing = need - sum(action == "right" for action in path)
    if left == 0 or missing <= 0:
        return float(missing <= 0)
    return LEFT * value([*path, "left"], need) + (1 - LEFT) * value([*path, "right"], need)


class Flips:
    """A policy that goes left with probability `LEFT`, whatever it sees."""

    def __init__(self, seed: int = 0):
        self._draw = random.Random(seed)
        self._tokenizer = build_tokenizer()
        self.calls: list[int] = []

    def respond(self, prompts: list[list[int]], until: Any = None) -> Responses:
        self.calls.append(len(prompts))
        actions = ["left" if self._draw.random() < LEFT else "right" for _ in prompts]
        texts = [f"<think>go {action}</think><action>{action}</action>" for action in actions]
        return Responses([[*self._tokenizer(text)["input_ids"], self._tokenizer.eos_token_id] for text in texts], None)


def player(policy: Any, factory: Any = Corridor, slots: int = 64) -> Player:
    tokenizer, environments = build_tokenizer(), open_batch(factory, slots)
    return Player.of(environments, policy, tokenizer, [tokenizer.eos_token_id], PlayOptions(128))


def save_policy(folder: Path) -> Path:
    """A model that was shown what a response looks like, so that it acts."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    chats, responses = [], []
    for need in (1, 2):
        for path in (
            [],
            ["left"],
            ["right"],
            ["left", "left"],
            ["left", "right"],
            ["right", "left"],
            ["right", "right"],
        ):
            names = "zero one two three".split()
            lines = [f"you seek the number {names[need]}", *(f"action {action}" for action in path)]
            lines.append(f"you are at {names[path.count('right')]}")
            for action in ("left", "right"):
                chats.append([{"role": "user", "content": "\n".join(lines)}])
                responses.append(f"<think>go {action}</think><action>{action}</action>")
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    answers = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(responses)["input_ids"]]
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    for _ in range(150):
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
