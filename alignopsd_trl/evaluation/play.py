"""Plays panels (evaluation sets) in one loop, for the trainer and for `evaluate`, which needs no trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.chat.options import PlayOptions
from alignopsd_trl.chat.reading import Reader
from alignopsd_trl.environments.adapters import AdaptedEnvironment, as_environment
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.evaluation.summary import EvaluationResult, Outcome, summarise
from alignopsd_trl.models import end_ids
from alignopsd_trl.rollout import Player, Responses, SkillSource, episode_seeds, make_player, no_skills
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ModelGenerator:
    """A transformers model as a `BatchSampler`.

    Args:
        model: the policy.
        tokenizer: pads prompts on the left.
        temperature: the sampling temperature; `0` decodes greedily.
        max_tokens: tokens of a response at most.
        batch_size: prompts of one call of ``generate``.
        top_p, top_k, min_p, repetition_penalty: as in [`~trl.GRPOConfig`]. The model's own ``generation_config`` is
            ignored for these, as in training.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        temperature: float,
        max_tokens: int,
        batch_size: int = 64,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
    ):
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        self.end_ids = end_ids(model, tokenizer.eos_token_id)
        sampled = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        self._options = (sampled if temperature > 0 else {"do_sample": False}) | {
            "repetition_penalty": repetition_penalty,
            "max_new_tokens": max_tokens,
            "eos_token_id": self.end_ids,
            "pad_token_id": tokenizer.pad_token_id,
        }

    @torch.no_grad()
    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        responses: list[list[int]] = []
        for first in range(0, len(prompts), self._batch_size):
            part = [list(prompt) for prompt in prompts[first : first + self._batch_size]]
            inputs: Any = self._tokenizer.pad(
                {"input_ids": part}, padding=True, padding_side="left", return_tensors="pt"
            )
            inputs = {name: inputs[name].to(self._model.device) for name in ("input_ids", "attention_mask")}
            generate: Any = self._model.generate
            sampled = generate(**inputs, **self._options)[:, inputs["input_ids"].size(1) :]
            responses += [self._cut(row) for row in sampled.tolist()]
        return Responses(responses, None)

    def _cut(self, tokens: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(tokens) if token in self.end_ids), len(tokens) - 1)
        return tokens[: end + 1]


@contextlib.contextmanager
def evaluating(model: torch.nn.Module, seed: int) -> Generator[None]:
    """Sets evaluation mode and a random seed; restores the model's mode and the random state afterwards."""
    training = model.training
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.eval()
        try:
            yield
        finally:
            model.train(training)


def play_panel(
    player: Player,
    model: torch.nn.Module,
    panel: TaskPanel,
    *,
    slots: int,
    seed: int = 0,
    process: int = 0,
    processes: int = 1,
    finished: Callable[[Sequence[Trajectory]], None] = lambda trajectories: None,
) -> list[Trajectory]:
    """Plays each task of a panel once. All results of this project come from this loop.

    An episode's own seed comes from its task alone; ``seed`` is that of the sampling. The function restores the
    caller's random state and the model's mode (training or not). Equal weights, slots and seed give equal episodes,
    in a trainer and in `evaluate`.

    Args:
        player (`Player`): plays up to ``slots`` episodes at a time.
        model (`torch.nn.Module`): the policy that the player samples from; put into evaluation mode.
        panel (`TaskPanel`): the tasks.
        slots (`int`): episodes played at once.
        seed (`int`, *optional*, defaults to 0): the sampling seed; each process adds its number.
        process, processes (`int`, *optional*): this process plays every ``processes``-th task from ``process`` on. All
            processes play equally many rounds, some perhaps without a task, so that generation may run collectives.
        finished (`Callable[[Sequence[Trajectory]], None]`, *optional*): called with the episodes of ``slots`` tasks,
            while their environments are still in the final state.

    Returns:
        This process's trajectories, in the panel's order.
    """
    own = panel.rows[process::processes]
    most = len(panel.rows[::processes])  # the first process has the largest share
    played: list[Trajectory] = []
    player.sampling_seed = seed
    with evaluating(model, seed + process):
        for first in range(0, most, slots):
            rows = own[first : first + slots]
            seeds = [episode_seeds(row["task_id"], 0, 0) for row in rows]
            part = player.play(rows, seeds, [row["task_id"] for row in rows])
            finished(part)
            played += part
    return played


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
    """Plays each task of a panel once with a model, without a trainer.

    Args:
        model: the policy.
        tokenizer: the model's, with a chat template.
        factory: makes an environment of this project's or of TRL's convention.
        panel: the tasks.
        skills: gives the skill for the policy's own prompt (the starred rows of the table); made by `skill_source`.
        temperature: the sampling temperature; `0` decodes greedily.
        top_p, top_k, min_p, repetition_penalty: options of sampling, as in [`~trl.GRPOConfig`], whose values a
            trainer's own evaluations use. The model's ``generation_config`` is ignored for these.
        seed: the sampling seed. An episode's own seed depends on its task alone.
        max_completion_length: tokens of a response at most.
        batch_size: episodes played at once.
        time_limit: seconds that one call of an environment may take.
        progress: called with the numbers of ended episodes and of played turns since the last call.
        options: fields of [`~alignopsd_trl.chat.options.PlayOptions`], such as ``max_prompt_length``.

    Returns:
        The result and the trajectories, in the panel's order.
    """
    playing = PlayOptions(**options)
    narrowed = {"top_p": top_p, "top_k": top_k, "min_p": min_p, "repetition_penalty": repetition_penalty}
    sampler = ModelGenerator(model, tokenizer, temperature, max_completion_length, batch_size, **narrowed)
    factory = as_environment(factory)
    if isinstance(factory, AdaptedEnvironment) and not factory.knows_score:
        raise ValueError(
            f"{factory.__name__} has no get_reward(), so that there is nothing to report; pass ToolEnvironment(..., "
            "score=lambda environment: ...)"
        )
    environments = open_batch(factory, min(batch_size, len(panel)), time_limit)
    player = make_player(
        environments,
        tokenizer,
        sampler,
        sampler.end_ids,
        playing,
        skills=skills or no_skills,
        skills_in_rollout=skills is not None,
        progress=progress,
    )
    with contextlib.closing(environments):
        played = play_panel(player, model, panel, slots=batch_size, seed=seed)
    outcomes = [Outcome.of(trajectory) for trajectory in played]
    return summarise(panel, outcomes, skills=skills is not None, temperature=temperature, seed=seed), played
