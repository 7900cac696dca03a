"""Estimates the seconds of a training round on this machine from a measurement of a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from peft import get_peft_model
from transformers import DynamicCache
from trl import ModelConfig, get_peft_config

from alignopsd_trl.checks.loading import load_policy
from alignopsd_trl.common.progress import busy
from alignopsd_trl.own_task.warm_start.precision import bfloat16_pays
from alignopsd_trl.scoring.packing import CACHE_NAME

TOKENS, ROWS, STEPS = 512, 32, 4
"""Tokens of the measured forward and update; most rows, and steps, of the measured decoding."""


def round_seconds(model: str, prompt: int, answer: int, turns: float, settings: Mapping[str, Any]) -> str:
    """Returns an estimate for a round of GRPO whose turns all teach, as a line; a teacher adds its scores.

    Args:
        model: the policy's name or path.
        prompt, answer: tokens of a turn.
        turns: turns of an episode.
        settings: the recipe's, of which the round's shape counts.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy: Any = load_policy(model, "float32", str(device))[0]
    given = {one.name: settings[one.name] for one in fields(ModelConfig) if one.name in settings}
    if adapters := get_peft_config(ModelConfig(**given)):
        policy = get_peft_model(policy, adapters)
    trained = [one for one in policy.parameters() if one.requires_grad]
    policy.requires_grad_()
    fast = bfloat16_pays(policy.config.get_text_config().hidden_size)
    episodes = settings.get("tasks_per_round", 8) * settings.get("num_generations", 8)
    ids = torch.ones(max(1, TOKENS // (prompt + answer)), prompt + answer, dtype=torch.int64, device=device)
    precision = partial(torch.autocast, device.type, torch.bfloat16, enabled=fast)
    began, computed = time.perf_counter(), time.thread_time()
    with precision(), torch.no_grad():  # autocast keeps its casts while all learn, as a round keeps them
        read, write = _speeds(policy, ids, min(episodes, ROWS))
    policy.requires_grad_(False)
    for one in trained:
        one.requires_grad_()
    with precision():
        learn = _seconds(lambda: _learn(policy, ids)) / ids.numel()
    count, passes = episodes * turns, settings.get("num_iterations", 1)
    scored = passes * (settings.get("updates_per_round") or 1) > 1  # the log-probs that a second step needs
    rollout = count * (prompt * read + answer * write)
    update = count * (prompt + answer) * (passes * learn + scored * read)
    wall, cpu = time.perf_counter() - began, time.thread_time() - computed
    idle = f", about {(rollout + update) * cpu / wall:.0f} s on an idle one"
    said = f"; {busy(wall, cpu)}{idle}" if device.type == "cpu" and busy(wall, cpu) else ""
    return (
        f"a round of {episodes} episodes of {turns:.1f} turns takes about {rollout + update:.0f} s here "
        f"(rollout {rollout:.0f}, update {update:.0f}; GRPO with {model} in {'bfloat16' if fast else 'float32'}){said}"
    )


def _speeds(policy: Any, ids: torch.Tensor, together: int) -> tuple[float, float]:
    """Returns the seconds of a token that is read and of one that is written with others."""
    rows = ids[:1].expand(together, -1)
    read = _seconds(lambda: policy.get_decoder()(input_ids=ids, use_cache=False)) / ids.numel()
    known: Any = {CACHE_NAME: DynamicCache(config=policy.config)}
    policy(input_ids=rows, use_cache=True, logits_to_keep=1, **known)
    step = _seconds(lambda: policy(input_ids=rows[:, :1], use_cache=True, **known), STEPS)
    return read, step / together


def _learn(policy: Any, ids: torch.Tensor) -> None:
    inputs = policy.get_input_embeddings()(ids).detach().requires_grad_()
    policy.get_decoder()(inputs_embeds=inputs, use_cache=False).last_hidden_state.float().sum().backward()


def _seconds(call: Callable[[], Any], times: int = 1) -> float:
    """Returns the mean seconds of a call, after a first one that is not counted."""
    call()
    begun = time.perf_counter()
    for _ in range(times):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times
