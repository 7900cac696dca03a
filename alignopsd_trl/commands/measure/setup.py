"""Sets up a measurement from the names of a model, an environment and methods: sampling, scoring, tasks. Limits come
from the environment's preset."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from alignopsd_trl.checks.loading import load_policy
from alignopsd_trl.checks.trainer import adapted
from alignopsd_trl.commands.launch.machine import usable_device
from alignopsd_trl.commands.launch.presets import preset
from alignopsd_trl.commands.measure.variants import make_variants, read_vary
from alignopsd_trl.common.models import end_ids
from alignopsd_trl.common.options import hints_of, settled
from alignopsd_trl.config import INHERITED_RULES, AlignOPSDConfig
from alignopsd_trl.encoder import Encoder, load_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.shipped import BENCHMARKS, SHIPPED
from alignopsd_trl.methods import Method
from alignopsd_trl.rollout.episode import no_skills
from alignopsd_trl.rollout.monte_carlo.replays import Replays
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.reading import reader_for
from alignopsd_trl.rollout.sampler import SortedByLength
from alignopsd_trl.runs.sizes import read_sizes
from alignopsd_trl.sampling.loop import PLAIN, plain_sampler, shares_prompts
from alignopsd_trl.scoring.model import ModelScorer
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.teacher import PrivilegedTeacher
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.skills import load_skills, skill_source
from alignopsd_trl.training.phases import Phases
from alignopsd_trl.turns import TurnBatch


def environment_preset(environment: str) -> dict[str, Any]:
    """Returns the preset of a shipped environment (of its 7B recipe where there are several); empty for a user's
    module."""
    try:
        return preset(f"{environment}_7b" if environment in BENCHMARKS else environment)
    except ValueError:
        return {}


def configure(
    output: Path, environment: str, given: Mapping[str, Any], device: str, method: str, own: Mapping[str, Any]
) -> AlignOPSDConfig:
    """Makes the configuration of a method from the environment's preset, then ``given``, then a variant's ``own``
    settings: fields of `AlignOPSDConfig`, and ``METHOD.OPTION`` for ``method_options``. Raises `ValueError` for an
    unknown setting, or a value of a wrong type."""
    known = hints_of(AlignOPSDConfig, INHERITED_RULES)
    asked = {**given, **own}
    options = {name.partition(".")[2]: value for name, value in asked.items() if name.startswith(f"{method}.")}
    fields = {name: value for name, value in asked.items() if "." not in name}
    if unknown := sorted(set(fields) - set(known)):
        raise ValueError(f"{unknown[0]!r} is no field of AlignOPSDConfig; an option of a method is METHOD.OPTION")
    chosen = {name: value for name, value in environment_preset(environment).items() if name in known}
    chosen |= {"bf16": False, "gradient_checkpointing": False, "report_to": "none"}
    chosen |= settled(fields, known)
    chosen |= {"method": method, "output_dir": str(output), "use_cpu": device == "cpu"}
    chosen |= {"per_device_train_batch_size": chosen.get("num_generations", 8)}
    return AlignOPSDConfig(**chosen, **({"method_options": options} if options else {}))


@dataclass
class MeasureSession:
    """What a measurement needs.

    Args:
        config: of the first method; the methods differ in what assigns credit alone.
        variants: label -> method with its settings.
        player: plays episodes at the training temperature, with skills as in training.
        encoder: of the teacher; `None` where no method needs one.
    """

    arguments: argparse.Namespace
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    suite: Suite
    tasks: Dataset
    config: AlignOPSDConfig
    variants: dict[str, Method]
    player: Player
    encoder: Encoder | None

    @property
    def replays(self) -> Replays:
        return Replays(self.player, self.arguments.slots, self.arguments.seed)

    def score(self, batch: TurnBatch) -> torch.Tensor:
        """Returns log-probs ``(M, L)`` of a batch's responses under their own prompts."""
        scorer, rows = ModelScorer(self.model, self.config.temperature), torch.arange(len(batch))
        prompts = Ragged.of([turn.prompt_ids for turn in batch.turns])
        responses = Ragged.of([turn.response_ids for turn in batch.turns])
        forwards = Forwards(pad_id=self.tokenizer.pad_token_id, budget=self.config.tokens_per_forward)
        return score_pairs(scorer, prompts, responses, rows, rows, forwards)[:, : batch.policy_mask.size(1)]

    @cached_property
    def teacher(self) -> PrivilegedTeacher:
        """The privileged view of the same policy."""
        config = self.config
        longest = config.teacher_max_completion_length or config.max_completion_length
        return PrivilegedTeacher(
            ModelScorer(self.model, config.temperature),
            _sampler(self.model, self.tokenizer, config, longest, self.arguments.batch_size),
            self.tokenizer,
            self.encoder,
            forwards=Forwards(
                pad_id=self.tokenizer.pad_token_id,
                budget=config.tokens_per_forward,
                shared=config.share_prefixes and shares_prompts(self.model),
            ),
            gather=lambda values: values,
            phases=Phases(),
            reader=reader_for(self.tokenizer, self.player.environments, PlayOptions.of(config)),
        )

    def draw_tasks(self, count: int) -> list[dict[str, Any]]:
        """Draws rows of the split without replacement."""
        if count > len(self.tasks):
            raise ValueError(f"tasks={count} is more than the {len(self.tasks)} tasks of the split; ask for fewer")
        order = np.random.default_rng(self.arguments.seed).permutation(len(self.tasks))[:count]
        return [dict(self.tasks[int(row)]) for row in order]

    def identity(self) -> dict[str, Any]:
        """Returns the settings that determine episodes and rollouts, without device and batch size, which only assign
        random numbers. A replay compares the retrieved skills, which may depend on the encoder."""
        return {
            **{name: getattr(self.arguments, name) for name in _ASKED},
            **{name: getattr(self.config, name) for name in _PLAYED},
            "skills_in_rollout": self.player.skills_in_rollout,
            "weights": _digest([float(one.detach().double().sum()) for one in self.model.parameters()]),
            "chat_template": _digest(self.tokenizer.chat_template),
        }


_ASKED = ("environment", "environment_options", "tasks", "rollouts", "split", "value", "everywhere", "seed", "slots")
_ASKED += ("enough", "skill_bank")
_PLAYED = ("num_generations", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_PLAYED += ("max_completion_length", "environment_time_limit", "skill_budget", *PlayOptions.names())


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def prepare(arguments: argparse.Namespace, skilled: bool = False) -> MeasureSession:
    """Loads the model, environment and methods that the arguments name, and fills in omitted arguments. The caller
    closes ``player.environments``.

    Args:
        skilled: whether to retrieve skills even if no method needs them.
    """
    arguments.device = usable_device(arguments.device)
    known = set(AlignOPSDConfig.__dataclass_fields__) - {"method_options"}  # other settings of a recipe are its own
    recipe = {name: value for name, value in arguments.settings.items() if name in known}
    given = read_sizes(arguments.model) | recipe | arguments.set
    settings = partial(configure, arguments.output, arguments.environment, given, arguments.device)
    vary = [one for text in arguments.vary for one in read_vary(text)]
    variants = make_variants(settings, arguments.methods, vary)
    methods = list(variants.values())
    config = methods[0].config
    _check(config, arguments.slots)
    suite = load(arguments.environment, **arguments.environment_options)
    model, tokenizer = load_policy(arguments.model, arguments.dtype, arguments.device)
    factory, tasks, _ = adapted(suite.factory, None, suite.tasks(arguments.split), None, config)
    if "task_id" not in tasks.column_names:
        names = f"have no column 'task_id' (one row per task), only {tasks.column_names}"
        raise ValueError(f"the rows of environment {suite.name!r} {names}")
    skilled = skilled or any(one.needs_teacher or one.skills_in_rollout for one in methods)
    _complete(arguments, suite, skilled)
    encoder = load_encoder(arguments.encoder, device=model.device) if skilled else None
    skills = no_skills
    if skilled:
        bank = load_skills(arguments.skill_bank, encoder, tasks.column_names)
        skills = skill_source(bank, tokenizer, config.skill_budget)
    environments = open_batch(factory, arguments.slots, config.environment_time_limit)
    player = Player.of(
        environments,
        _sampler(model, tokenizer, config, config.max_completion_length, arguments.batch_size),
        tokenizer,
        end_ids(model, tokenizer.eos_token_id),
        PlayOptions.of(config),
        skills=skills,
        skills_in_rollout=any(one.skills_in_rollout for one in methods),
    )
    return MeasureSession(arguments, model, tokenizer, suite, tasks, config, variants, player, encoder)


def _sampler(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: AlignOPSDConfig, limit: int, rows: int
) -> SortedByLength:
    options = {name: getattr(config, name) for name in ("temperature", *PLAIN)}
    given = {name: value for name, value in options.items() if value is not None}
    ends = end_ids(model, tokenizer.eos_token_id)
    return SortedByLength(plain_sampler(model, tokenizer, ends, given, limit, rows), lambda prompts: rows)


def _check(config: AlignOPSDConfig, slots: int) -> None:
    if config.history != "window":
        raise ValueError(
            f"history={config.history!r}: Monte Carlo rollouts replay actions, which make no conversation; use 'window'"
        )
    if slots < config.num_generations:
        raise ValueError(
            f"slots={slots} can't hold a sibling group, which is played side by side: take "
            f"{config.num_generations} (num_generations) or more"
        )


def _complete(arguments: argparse.Namespace, suite: Suite, skilled: bool) -> None:
    defaults = environment_preset(arguments.environment)
    arguments.tasks_per_batch = arguments.tasks_per_batch or defaults.get("tasks_per_round", arguments.tasks)
    own = suite.skill_bank or (suite.name if suite.name in SHIPPED else None)
    arguments.skill_bank = (arguments.skill_bank or own) if skilled else None
    arguments.encoder = (arguments.encoder or defaults.get("encoder", "lexical")) if skilled else None
    if skilled and not arguments.skill_bank:
        raise ValueError(
            f"environment {suite.name!r} has no skills, which a teacher needs: give --skill_bank, or --methods "
            "without a teacher, such as grpo,gigpo, with --model, --environment and --output"
        )
