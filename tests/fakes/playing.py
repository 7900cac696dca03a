"""The project's own loop under the player, with one seed a request: nobody waits, or all for each other."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from functools import cache
from typing import Any

import torch
from fakes.lockstep_cases import POLICIES, hint
from fakes.plays import play_with
from fakes.toy import build_model, build_tokenizer, toy_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.environments.loading import load
from alignopsd_trl.rollout.sampler import Continuous, Request, Response
from alignopsd_trl.sampling.loop import LoopSampler
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.turns import Trajectory

_NUMBERS = threading.Lock()
"""Tests let threads stand for processes, and torch's random state is one for all threads."""


class Seeded(Continuous):
    """The project's loop with one request at a time, whose random numbers come from the request's seed."""

    def __init__(self, model: Any, end_id: int, max_tokens: int = 12):
        self._loop = LoopSampler(PrefixCache(model, 0), 1.0, max_tokens, [end_id])
        self._asked: deque[tuple[Request, Future[Response]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Future[Response]:
        future: Future[Response] = Future()
        self._asked.append((request, future))
        return future

    def advance(self) -> bool:
        if not self._asked:
            return False
        request, future = self._asked.popleft()
        with _NUMBERS, torch.random.fork_rng(devices=[]):
            torch.manual_seed(request.seed)
            ids, log_probs = self._loop.sample([request.prompt_ids], request.until)
        future.set_result(Response(ids[0], log_probs[0]))
        return True

    def drop(self) -> None:
        self._asked.clear()


class Waiting(Seeded):
    """Answers all episodes at once."""

    waits_for_all = True

    def advance(self) -> bool:
        asked = self.waiting > 0
        while super().advance():
            pass
        return asked


def seed_requests(trainer: Any, kind: type[Seeded] = Seeded) -> None:
    """Lets a trainer sample each request by its own seed."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    trainer.backend.sampler = lambda temperature, max_tokens, prefixes=None: kind(model, 2, max_tokens)


@cache
def shipped(suite: str) -> tuple[Any, Any]:
    folder = SHIPPED_MODELS[POLICIES[suite]]
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def play_rows(
    factory: Any, rows: list[dict], tokenizer: Any, samplers: list[Any], max_turns: int | None = None, **options: Any
) -> list[Trajectory]:
    """Episodes of siblings side by side; a second sampler plays the first of each group."""
    options |= {"privileged_siblings": 1, "teacher": samplers[1]} if len(samplers) > 1 else {}
    options |= {"max_prompt_length": 500, "max_turns": max_turns, "skills": hint}
    return play_with(samplers[0], factory, rows, tokenizer, siblings=3, step=3, time_limit=2.0, **options)


def play_suite(name: str, kind: type[Seeded], **options: Any) -> tuple[list[Trajectory], Seeded]:
    """A shipped policy on its suite."""
    model, tokenizer = shipped(name)
    rows = [row for row in load(name).panel("test").rows[:4] for _ in range(2)]
    sampler = kind(model, tokenizer.eos_token_id, 48)
    return play_rows(load(name).factory, rows, tokenizer, [sampler], 4, **options), sampler


@cache
def toy_model(seed: int) -> Any:
    return build_model(build_tokenizer(), seed).eval()


def play_toy(
    factory: Any, kind: type[Seeded], tasks: int = 6, teacher: bool = False, **options: Any
) -> list[Trajectory]:
    """Models of random weights on the toy game."""
    tokenizer = build_tokenizer()
    samplers = [kind(toy_model(seed), 2) for seed in range(1 + teacher)]
    rows = [row for row in toy_dataset(tasks) for _ in range(3)]
    return play_rows(factory, rows, tokenizer, samplers, **options)
