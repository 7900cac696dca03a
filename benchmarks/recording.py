"""Rounds of training kept for replay: weights, the tasks, and every token that was sampled.

A replayed round plays the same episodes and thinks the same thoughts while all of its work is done again: generation
runs its forwards and its sampling, and the token that was recorded takes the place of the one that was drawn. So two
versions of the code, two methods or two settings can be timed and compared on the same tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from alignopsd_trl.rollout.sampler import BatchSampler, Responses
from alignopsd_trl.sampling import loop as decoding
from alignopsd_trl.trainer import AlignOPSDTrainer

Round = dict[str, Any]
"""``step``, ``inputs`` (dataset rows), ``weights`` (the trained ones), ``rollout`` (for each generation call the
responses in order) and ``thinking`` (pairs of privileged prompt and response)."""


class Through:
    """A sampler that is asked through a function."""

    def __init__(self, ask: Callable[[BatchSampler, Any, Any], Responses], inner: BatchSampler):
        self._ask, self._inner = ask, inner

    def respond(self, prompts: Any, until: Any = None) -> Responses:
        return self._ask(self._inner, prompts, until)


def record(trainer: AlignOPSDTrainer) -> list[Round]:
    """Trains to the end and keeps every round. Plain containers only, so that other versions can read them."""
    rounds: list[Round] = []
    inner_round, sampler, thinker = (
        trainer._generate_and_score_completions,
        trainer.backend.sampler,
        trainer.samplers.thinker,
    )

    def whole_round(inputs: list[dict[str, Any]]) -> Any:
        model = trainer.accelerator.unwrap_model(trainer.model)
        trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        weights = {name: value.detach().clone() for name, value in trained}
        rows = [dict(row) for row in inputs]
        rounds.append(
            {"step": trainer.state.global_step, "inputs": rows, "weights": weights, "rollout": [], "thinking": []}
        )
        return inner_round(inputs)

    def generate(inner: BatchSampler, prompts: Any, until: Any) -> Responses:
        found = inner.respond(prompts, until)
        if not thinking:
            rounds[-1]["rollout"].append([list(response) for response in found.ids])
        return found

    def think(inner: BatchSampler, prompts: Any, until: Any) -> Responses:
        thinking.append(True)
        found = inner.respond(prompts, until)
        thinking.pop()
        rounds[-1]["thinking"] += [
            (list(prompt), list(response)) for prompt, response in zip(prompts, found.ids, strict=True)
        ]
        return found

    thinking: list[bool] = []
    trainer._generate_and_score_completions = whole_round
    trainer.backend.sampler = lambda *settings: Through(generate, sampler(*settings))
    trainer.samplers.thinker = lambda *settings: Through(think, thinker(*settings))
    trainer.train()
    return rounds


def save(rounds: list[Round], recipe: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"recipe": recipe, "rounds": rounds, "checksum": checksum(rounds)}, path)


def load(path: Path, recipe: str) -> list[Round]:
    """
    Raises:
        ValueError: if the file was recorded with another recipe, or its content does not give its checksum.
    """
    content = torch.load(path, weights_only=True)
    if content["recipe"] != recipe:
        raise ValueError(f"{path} was recorded with recipe {content['recipe']!r}, not {recipe!r}")
    if checksum(content["rounds"]) != content["checksum"]:
        raise ValueError(f"{path} is damaged: its checksum is not {content['checksum']}")
    return content["rounds"]


def checksum(rounds: list[Round]) -> str:
    digest = hashlib.sha256()
    for one in rounds:
        plain = {name: one[name] for name in ("step", "inputs", "rollout", "thinking")}
        digest.update(json.dumps(plain, sort_keys=True, default=str).encode())
        for name in sorted(one["weights"]):
            digest.update(one["weights"][name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


class OneToken(LogitsProcessor):
    """Leaves transformers' ``generate`` one token to sample in each row."""

    def __init__(self, tokens: torch.Tensor, prompt_length: int):
        self._tokens, self._start = tokens, prompt_length

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self._tokens[:, ids.size(1) - self._start]
        return torch.full_like(scores, float("-inf")).scatter_(1, token.unsqueeze(1), 0.0)


class Replay:
    """Makes a trainer sample what was recorded."""

    def __init__(self, trainer: AlignOPSDTrainer):
        self._trainer = trainer
        self._thinking = False
        self._calls: Iterator[list[list[int]]] = iter(())
        self._thoughts: defaultdict[tuple[int, ...], list[list[int]]] = defaultdict(list)
        self._responses: list[list[int]] = []
        self._generate: Callable[..., Any] = trainer.model.generate
        sampler, thinker = trainer.backend.sampler, trainer.samplers.thinker
        trainer.backend.sampler = lambda *settings: Through(self._generate_turn, sampler(*settings))
        trainer.samplers.thinker = lambda *settings: Through(self._think, thinker(*settings))
        trainer.model.generate = self._generate_tokens

    def load(self, one: Round) -> None:
        self._trainer.model.load_state_dict(one["weights"], strict=False)
        self._trainer.state.global_step = one["step"]
        self._calls = iter(one["rollout"])
        self._thoughts.clear()
        for prompt, response in one["thinking"]:
            self._thoughts[tuple(prompt)].append(response)

    def _think(self, inner: BatchSampler, prompts: Any, until: Any) -> Responses:
        self._thinking = True
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_thinking", False)
            return inner.respond(prompts, until)

    def _generate_turn(self, inner: BatchSampler, prompts: Any, until: Any) -> Responses:
        if self._thinking:
            self._responses = [self._thoughts[tuple(prompt)].pop(0) for prompt in prompts]
        else:
            self._responses = next(self._calls)
        if len(self._responses) != len(prompts):
            raise RuntimeError(f"the replay asks for {len(prompts)} responses, {len(self._responses)} were recorded")
        with self._drawn():
            found = inner.respond(prompts, until)
        cut = until is not None  # they may end with their thinking
        pairs = zip(found.ids, self._responses, strict=True)
        if any(list(one) != two[: len(one) if cut else None] for one, two in pairs):
            raise RuntimeError("the replay sampled other tokens than were recorded")
        return found

    def _generate_tokens(self, *arguments: Any, input_ids: torch.Tensor, **options: Any) -> Any:
        options["logits_processor"] = LogitsProcessorList([OneToken(self._tokens(), input_ids.size(1))])
        return self._generate(*arguments, input_ids=input_ids, **options)

    @contextlib.contextmanager
    def _drawn(self) -> Generator[None]:
        """The project's own loop draws, and takes the recorded token."""
        inner, tokens = decoding.draw, self._tokens()

        def draw(log_probs: torch.Tensor, place: torch.Tensor, step: int) -> torch.Tensor:
            inner(log_probs, place, step)
            return tokens[place, step]

        decoding.draw = draw
        try:
            yield
        finally:
            decoding.draw = inner

    def _tokens(self) -> torch.Tensor:
        """The recorded tokens ``(rows, T)``, padding after a response's end."""
        width = self._trainer.generation_config.max_new_tokens
        tokens = torch.full((len(self._responses), width), self._trainer.processing_class.pad_token_id)
        for row, response in enumerate(self._responses):
            tokens[row, : len(response)] = torch.tensor(response)
        return tokens.to(self._trainer.accelerator.device)
