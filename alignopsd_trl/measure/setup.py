"""Sets up a measurement from the names of a model, an environment and methods. Limits come from the environment's
preset."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from alignopsd_trl.chat.options import PlayOptions
from alignopsd_trl.chat.reading import reader_for
from alignopsd_trl.checks.loading import load_policy
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.shipped import BENCHMARKS, SHIPPED
from alignopsd_trl.launch.machine import usable_device
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.measure.measurement import Bench
from alignopsd_trl.measure.policy import PLAIN, ModelScorer, make_sampler, shares_prompts
from alignopsd_trl.measure.variants import Variant, make_variants, read_vary
from alignopsd_trl.methods import Method
from alignopsd_trl.models import end_ids
from alignopsd_trl.options import as_type
from alignopsd_trl.rollout import make_player, no_skills
from alignopsd_trl.runs.progress import Bar
from alignopsd_trl.runs.sizes import read_sizes
from alignopsd_trl.scoring.teacher import PrivilegedTeacher
from alignopsd_trl.skills import load_skills, skill_source
from alignopsd_trl.training.compatibility import adapted
from alignopsd_trl.training.phases import Phases


def own_bank(suite: Suite) -> str | None:
    """Returns the environment's own skill bank, if it has one."""
    return suite.skill_bank or (suite.name if suite.name in SHIPPED else None)


def bank_of(suite: Suite, given: str | None) -> str:
    """Returns the given skill bank, else the environment's own.

    Raises:
        ValueError: if there is none.
    """
    if found := given or own_bank(suite):
        return found
    raise ValueError(
        f"environment {suite.name!r} has no skills, which a teacher needs: give --skill_bank, or --methods "
        "without a teacher, such as grpo,gigpo"
    )


def environment_preset(environment: str) -> dict[str, Any]:
    """Returns the preset of a shipped environment (of its 7B recipe where there are several); empty for a user's
    module."""
    name = f"{environment}_7b" if environment in BENCHMARKS else environment
    try:
        return preset(name)
    except ValueError:
        return {}


@dataclass(frozen=True)
class Settings:
    """Makes configurations from the environment's preset, then ``given``, then a variant's settings.

    Args:
        given: fields of `AlignOPSDConfig`, and ``METHOD.OPTION`` for ``method_options``.
    """

    output: Path
    environment: str
    given: Mapping[str, Any]
    device: str

    def __call__(self, method: str, own: Mapping[str, Any]) -> AlignOPSDConfig:
        """Makes the configuration of a method.

        Raises:
            ValueError: for a setting that `AlignOPSDConfig` does not have, or a value of a wrong type.
        """
        known = AlignOPSDConfig.__dataclass_fields__
        asked = {**self.given, **own}
        options = {name.partition(".")[2]: value for name, value in asked.items() if name.startswith(f"{method}.")}
        fields = {name: value for name, value in asked.items() if "." not in name}
        if unknown := sorted(set(fields) - set(known)):
            raise ValueError(f"{unknown[0]!r} is no field of AlignOPSDConfig; an option of a method is METHOD.OPTION")
        hints = get_type_hints(AlignOPSDConfig, include_extras=True)
        fields = {name: as_type(value, hints[name], f"{name}={value!r}") for name, value in fields.items()}
        chosen = {name: value for name, value in environment_preset(self.environment).items() if name in known}
        chosen |= {"bf16": False, "gradient_checkpointing": False, "report_to": "none"} | fields
        chosen |= {"method": method, "output_dir": str(self.output), "use_cpu": self.device == "cpu"}
        chosen |= {"per_device_train_batch_size": chosen.get("num_generations", 8)}
        return AlignOPSDConfig(**chosen, **({"method_options": options} if options else {}))


@dataclass
class Subject:
    """A model in a suite, on the tasks of a split."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    suite: Suite
    tasks: Dataset
    config: AlignOPSDConfig

    @classmethod
    def load(
        cls,
        model: str,
        environment: str,
        options: Mapping[str, Any],
        config: AlignOPSDConfig,
        dtype: str,
        device: str,
        split: str = "train",
    ) -> Subject:
        """Loads a model, a suite and its tasks. A class of TRL's convention is played as in training.

        Raises:
            ValueError: for a model that `load_policy` refuses, or tasks without a ``task_id``.
        """
        loaded, tokenizer = load_policy(model, dtype, device)
        suite = load(environment, **options)
        factory, tasks, _ = adapted(suite.factory, None, suite.tasks(split), None, config)
        if "task_id" not in tasks.column_names:
            raise ValueError(
                f"the rows of environment {suite.name!r} have no column 'task_id' (one row per task), only "
                f"{tasks.column_names}"
            )
        return cls(loaded, tokenizer, replace(suite, factory=factory), tasks, config)

    def checksum(self) -> str:
        """Returns a cheap checksum of the weights, over their sums."""
        return digest([float(one.detach().double().sum()) for one in self.model.parameters()])


def digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def make_bench(
    subject: Subject,
    methods: Sequence[Method],
    slots: int,
    batch_size: int,
    skill_bank: str | None,
    encoder: str | None,
    quiet: bool = False,
) -> Bench:
    """Makes a subject's player, teacher and scorer. Without a bank no prompt holds a skill. The caller closes
    ``bench.player.environments``.

    Raises:
        ValueError: for conversations, or if a sibling group has more episodes than there are slots.
    """
    config, tokenizer, model = subject.config, subject.tokenizer, subject.model
    if config.history != "window":
        raise ValueError(
            f"history={config.history!r}: Monte Carlo rollouts replay actions, which make no conversation; use 'window'"
        )
    if slots < config.num_generations:
        raise ValueError(
            f"slots={slots} can't hold a sibling group, which is played side by side: take "
            f"{config.num_generations} (num_generations) or more"
        )
    loaded = load_encoder(encoder, device=model.device) if encoder else None
    skills = no_skills
    if skill_bank:
        bank = load_skills(skill_bank, loaded, subject.tasks.column_names)
        skills = skill_source(bank, tokenizer, config.skill_budget)
    options = {name: getattr(config, name) for name in ("temperature", *PLAIN)}
    options = {name: value for name, value in options.items() if value is not None}
    longest = config.max_completion_length, config.teacher_max_completion_length or config.max_completion_length
    sampler, think = (make_sampler(model, tokenizer, options, length, batch_size) for length in longest)
    scorer = ModelScorer(model, config.temperature)
    environments = open_batch(subject.suite.factory, slots, config.environment_time_limit)
    played = PlayOptions.of(config)
    reader = reader_for(tokenizer, environments, played)
    return Bench(
        player=make_player(
            environments,
            tokenizer,
            sampler,
            end_ids(model, tokenizer.eos_token_id),
            played,
            skills=skills,
            skills_in_rollout=any(one.skills_in_rollout for one in methods),
            reader=reader,
        ),
        slots=slots,
        teacher=PrivilegedTeacher(
            scorer,
            think,
            tokenizer,
            loaded,
            budget=config.scoring_tokens,
            share_prefixes=config.share_prefixes and shares_prompts(model),
            agree=lambda number: number,
            gather=lambda values: values,
            phases=Phases(),
            reader=reader,
        ),
        score=lambda batch: scorer.own(batch, tokenizer.pad_token_id, config.scoring_tokens),
        pad_id=tokenizer.pad_token_id,
        device=model.device,
        bars=lambda total, title: Bar(total, title, disable=quiet),
    )


def prepare(arguments: argparse.Namespace, skilled: bool = False) -> tuple[Subject, Bench, list[Variant]]:
    """Loads the model, environment and methods that the arguments name, and fills in omitted arguments.

    Args:
        skilled: whether to retrieve skills even if no method needs them.
    """
    arguments.device = usable_device(arguments.device)
    given = read_sizes(arguments.model) | arguments.set
    settings = Settings(arguments.output, arguments.environment, given, arguments.device)
    variants = make_variants(settings, arguments.methods, [one for text in arguments.vary for one in read_vary(text)])
    subject = Subject.load(
        arguments.model,
        arguments.environment,
        arguments.environment_options,
        variants[0].method.config,
        arguments.dtype,
        arguments.device,
        arguments.split,
    )
    defaults = environment_preset(arguments.environment)
    skilled = skilled or any(one.method.needs_teacher or one.method.skills_in_rollout for one in variants)
    arguments.skill_bank = bank_of(subject.suite, arguments.skill_bank) if skilled else None
    arguments.encoder = (arguments.encoder or defaults.get("encoder", "lexical")) if skilled else None
    arguments.tasks_per_batch = arguments.tasks_per_batch or defaults.get("tasks_per_round", arguments.tasks)
    bench = make_bench(
        subject,
        [variant.method for variant in variants],
        arguments.slots,
        arguments.batch_size,
        arguments.skill_bank,
        arguments.encoder,
        arguments.quiet,
    )
    return subject, bench, variants
