"""The project's own loop under the player, with one seed a request: nobody waits, or all for each other."""

from __future__ import annotations

from functools import cache
from typing import Any

from fakes.lockstep_cases import POLICIES, hint
from fakes.toy import build_model, build_tokenizer, toy_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.loading import load
from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.policy.shipped import SHIPPED_MODELS
from alignopsd_trl.policy.slots import SlotSampler
from alignopsd_trl.prompts import Renderer
from alignopsd_trl.rollout import Player, episode_seeds
from alignopsd_trl.turns import Trajectory


class WaitingSlots(SlotSampler):
    """Answers all episodes at once."""

    waits_for_all = True

    def advance(self) -> bool:
        asked = self.waiting > 0
        while super().advance():
            pass
        return asked


def slots(model: Any, end_id: int, kind: type[SlotSampler], max_tokens: int = 12, **options: Any) -> SlotSampler:
    return kind(model, 1.0, max_tokens, [end_id], PrefixCache(model, 0), **options)


@cache
def shipped(suite: str) -> tuple[Any, Any]:
    folder = SHIPPED_MODELS[POLICIES[suite]]
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def play_rows(
    factory: Any, rows: list[dict], tokenizer: Any, samplers: list[Any], max_turns: int | None = None, **options: Any
) -> list[Trajectory]:
    """Episodes of siblings side by side; a second sampler plays the first of each group."""
    batch = open_batch(factory, len(rows), 2.0)
    privileged = {"privileged_siblings": 1, "teacher": samplers[1]} if len(samplers) > 1 else {}
    player = Player(
        batch,
        Renderer(tokenizer, batch.prompt, 500),
        samplers[0],
        tokenizer,
        [tokenizer.eos_token_id],
        skills=hint,
        max_turns=max_turns,
        **privileged,
        **options,
    )
    seeds = [episode_seeds(row["task_id"], 3, place % 3) for place, row in enumerate(rows)]
    try:
        return player.play(rows, seeds, [row["task_id"] for row in rows])
    finally:
        batch.close()


def play_suite(name: str, kind: type[SlotSampler], **options: Any) -> tuple[list[Trajectory], SlotSampler]:
    """A shipped policy on its suite."""
    model, tokenizer = shipped(name)
    rows = [row for row in load(name).panel("test").rows[:4] for _ in range(2)]
    sampler = slots(model, tokenizer.eos_token_id, kind, 48)
    return play_rows(load(name).factory, rows, tokenizer, [sampler], 4, **options), sampler


@cache
def toy_model(seed: int) -> Any:
    return build_model(build_tokenizer(), seed).eval()


def play_toy(
    factory: Any, kind: type[SlotSampler], tasks: int = 6, teacher: bool = False, **options: Any
) -> list[Trajectory]:
    """Models of random weights on the toy game."""
    tokenizer = build_tokenizer()
    samplers = [slots(toy_model(seed), 2, kind) for seed in range(1 + teacher)]
    rows = [row for row in toy_dataset(tasks) for _ in range(3)]
    return play_rows(factory, rows, tokenizer, samplers, **options)
