"""A policy as the player of its own demonstrations: it reads the skill, and what it wins so is shown without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import set_seed

from alignopsd_trl.checks.loading import load_policy
from alignopsd_trl.commands.own_task.demonstrations import play_options
from alignopsd_trl.commands.own_task.playing import SLOTS, Answer, PlayerError, Situation
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.common.models import end_ids
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.rollout.sampler import BatchSampler
from alignopsd_trl.runs.sizes import read_sizes
from alignopsd_trl.sampling.loop import plain_sampler

FULL = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


@dataclass
class OwnPolicy:
    """Answers by sampling from a model. Raises `PlayerError` for a prompt that is too long."""

    sampler: BatchSampler
    renderer: Renderer
    tokenizer: Any

    def __call__(self, situations: Sequence[Situation]) -> list[Answer]:
        fitted = self.renderer.fit([one.view for one in situations], [one.skill for one in situations])
        prompts = [one.ids for one in fitted if one is not None]
        if len(prompts) < len(fitted):
            raise PlayerError(f"a prompt is longer than max_prompt_length={self.renderer.max_length}; raise it")
        responses = self.sampler.respond(prompts).ids
        return [Answer(self.tokenizer.decode(ids, skip_special_tokens=True)) for ids in responses]


def own_play(
    name: str, task: Task, seed: int, temperature: float, max_prompt_length: int | None = None
) -> tuple[OwnPolicy, Task]:
    """Loads a policy as a player of a task. Returns it with the task, whose sizes are the recipe's, else those beside
    the policy's weights; a ``max_prompt_length`` goes before both. Raises `ValueError` if it can't be loaded, or plays
    by calls in its template's own format."""
    prompt = task.declared.prompt
    if getattr(prompt, "native", False):
        raise ValueError(f"task {task.name}: --policy plays texts, not calls in a template's format; use --endpoint")
    task = replace(task, preset={**read_sizes(name), **task.preset})
    model, tokenizer = load_policy(name, "auto" if torch.cuda.is_available() else "float32")
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    set_seed(seed)
    options = {"temperature": temperature, **FULL}
    ends, most = end_ids(model, tokenizer.eos_token_id), task.limit("max_completion_length")
    limits = {**task.preset, "max_prompt_length": task.limit("max_prompt_length", max_prompt_length)}
    renderer = Renderer(tokenizer, prompt, PlayOptions(**play_options(limits)))
    return OwnPolicy(plain_sampler(model, tokenizer, ends, options, most, SLOTS), renderer, tokenizer), task
