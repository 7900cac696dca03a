"""Plays panels (evaluation sets) in one loop, for the trainer and for `evaluate`, which needs no trainer."""

from __future__ import annotations

import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import set_seed

from alignopsd_trl.common.models import end_ids
from alignopsd_trl.environments.adapters import AdaptedEnvironment, as_environment
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.results.summary import EvaluationResult, Outcome, summarise
from alignopsd_trl.rollout.conversations import check_template, notes_of
from alignopsd_trl.rollout.episode import SkillSource, episode_seeds, no_skills
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.runs.health import RunStopped, Tally
from alignopsd_trl.sampling.loop import plain_sampler
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module, seed: int) -> Generator[None]:
    """Sets evaluation mode and a random seed, of Python and NumPy too, which tasks and rewards may draw from. Restores
    the model's mode and the random states afterwards."""
    training, drawn, drawn_by_numpy = model.training, random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        set_seed(seed % 2**32)  # NumPy takes no larger one
        model.eval()
        try:
            yield
        finally:
            model.train(training)
            random.setstate(drawn)
            np.random.set_state(drawn_by_numpy)


def play_panel(
    player: Player,
    model: torch.nn.Module,
    rows: Sequence[Mapping[str, Any]],
    slots: int,
    seed: int = 0,
    process: int = 0,
    processes: int = 1,
    finished: Callable[[Sequence[Trajectory]], None] = lambda trajectories: None,
) -> list[Trajectory]:
    """Plays each row of a panel, or of another dataset, once. All results of this project come from this loop.

    An episode's own seed comes from its task, and its number among rows of this task; ``seed`` is that of the sampling.
    The function restores the caller's random state and the model's mode (training or not). Equal weights, slots and
    seed give equal episodes, in a trainer and in `evaluate`.

    Args:
        player (`Player`): plays up to ``slots`` episodes at a time.
        model (`torch.nn.Module`): the policy that the player samples from; put into evaluation mode.
        rows (`Sequence[Mapping[str, Any]]`): the tasks, each with a ``task_id``.
        slots (`int`): episodes played at once.
        seed (`int`, *optional*, defaults to 0): the sampling seed; each process adds its number.
        process, processes (`int`, *optional*): this process plays every ``processes``-th row from ``process`` on. All
            processes play equally many rounds, some perhaps without a row, so that generation may run collectives.
        finished (`Callable[[Sequence[Trajectory]], None]`, *optional*): called with the episodes of ``slots`` tasks,
            while their environments are still in the final state.

    Returns:
        This process's trajectories, in the rows' order.
    """
    siblings: defaultdict[str, count[int]] = defaultdict(count)
    own = [(row, next(siblings[row["task_id"]])) for row in rows][process::processes]
    most = len(rows[::processes])  # the first process has the largest share
    played: list[Trajectory] = []
    player.sampling_seed = seed
    with evaluating(model, seed + process):
        for first in range(0, most, slots):
            now = own[first : first + slots]
            seeds = [episode_seeds(row["task_id"], 0, place) for row, place in now]
            part = player.play([row for row, _ in now], seeds, [row["task_id"] for row, _ in now])
            finished(part)
            played += part
    return played


def check_played(tally: Tally, name: str) -> None:
    """Raises `RunStopped` if no episode of an evaluation could be played: there is no success to report, not even 0."""
    if tally.usable == 0:
        raise RunStopped(f"{name}: no episode could be played. The first reason: {tally.message}")


def evaluable(factory: Any) -> Any:
    """Returns a factory of either convention as one of this project's. Raises `ValueError` where nothing would be
    known of an episode's success."""
    made = as_environment(factory)
    if isinstance(made, AdaptedEnvironment) and not made.knows_score:
        raise ValueError(
            f"{made.__name__} has no get_reward(), so that there is nothing to report; pass ToolEnvironment(..., "
            "score=lambda environment: ...)"
        )
    return made


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    factory: Callable[[], Any],
    panel: TaskPanel,
    *,
    skills: SkillSource | None = None,
    temperature: float = 0.4,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    max_completion_length: int = 512,
    batch_size: int = 64,
    time_limit: float = 60.0,
    progress: Callable[[int, int], None] = lambda ended, turns: None,
    **options: Any,
) -> tuple[EvaluationResult, list[Trajectory]]:
    """Plays each task of a panel once with a model, without a trainer. Raises `RunStopped` if none could be played.

    Args:
        model: the policy.
        tokenizer: the model's, with a chat template.
        factory: makes an environment of this project's or of TRL's convention.
        panel: the tasks.
        skills: gives the skill for the policy's own prompt (the starred rows of the table); made by `skill_source`.
        temperature: the sampling temperature; `0` decodes greedily.
        top_p, top_k, min_p, repetition_penalty: options of sampling, as in [`~trl.GRPOConfig`], whose values a
            trainer's own evaluations use. The model's ``generation_config`` is ignored.
        seed: the sampling seed. An episode's own seed depends on its task alone.
        max_completion_length: tokens of a response at most.
        batch_size: episodes played at once.
        time_limit: seconds that one call of an environment may take.
        progress: called with the numbers of ended episodes and of played turns since the last call.
        options: fields of [`~alignopsd_trl.rollout.options.PlayOptions`], such as ``max_prompt_length``.

    Returns:
        The result and the trajectories, in the panel's order.
    """
    playing = PlayOptions(**options)
    narrowed = {"top_p": top_p, "top_k": top_k, "min_p": min_p, "repetition_penalty": repetition_penalty}
    given, ends = {"temperature": temperature, **narrowed}, end_ids(model, tokenizer.eos_token_id)
    sampler = plain_sampler(model, tokenizer, ends, given, max_completion_length, batch_size)
    factory = evaluable(factory)
    check_template(tokenizer, playing, getattr(getattr(factory, "prompt", None), "native", False))
    for told in notes_of(tokenizer, playing, ends):
        logger.warning(told)
    environments = open_batch(factory, min(batch_size, len(panel)), time_limit)
    player = Player.of(
        environments,
        sampler,
        tokenizer,
        ends,
        playing,
        skills=skills or no_skills,
        skills_in_rollout=skills is not None,
        progress=progress,
    )
    with contextlib.closing(environments):
        played = play_panel(player, model, panel.rows, slots=batch_size, seed=seed)
    check_played(Tally.of(played), f"panel {panel.name}")
    outcomes = [Outcome.of(trajectory) for trajectory in played]
    return summarise(panel, outcomes, skills=skills is not None, temperature=temperature, seed=seed), played
