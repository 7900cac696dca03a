"""Checks a run before its weights are loaded; the trainer, ``train`` and ``plan`` share one list of checks.

Messages name arguments and their values, such as ``max_steps=0``, in Python and in the shell.
`AlignOPSDConfig` itself checks single values.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import GenerationConfig, Trainer, get_scheduler

from alignopsd_trl.checks import tasks
from alignopsd_trl.checks.loading import check_architecture, check_policy, check_quantised, empty_model, put_adapter
from alignopsd_trl.checks.tasks import check_sessions, refuse_given, refuse_stream
from alignopsd_trl.common.models import base_of, resolve_model
from alignopsd_trl.common.options import as_mapping, near
from alignopsd_trl.config import BEST, AlignOPSDConfig
from alignopsd_trl.encoder import check_encoder
from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.loading import loaded_as
from alignopsd_trl.environments.shipped import SHIPPED
from alignopsd_trl.methods import Method
from alignopsd_trl.rollout.conversations import check_template
from alignopsd_trl.rollout.metrics import rollout_sums
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.skills import load_skills
from alignopsd_trl.skills.turn_texts import load_source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Intended:
    """A run that is about to start, as the input of the checks.

    Args:
        model (`str` or model): a name or a path; a loaded model is not checked.
        tasks ([`~datasets.Dataset`]): one row per task.
        skill_bank, encoder: as the trainer takes them; `None` for none.
        has_tokenizer (`bool`): whether a tokenizer is given beside the model.
        own_environment (`bool`): whether the environment follows this package's convention, not TRL's.
        rewards (`int`): number of reward functions beside the environment's own reward.
        groups (`int`, *optional*): tasks of one round; by default of this launch.
        factory (*optional*): makes the environments. The checks count its server's sessions, or open a task unless the
            environment comes with the package.
        privileged: as the trainer takes it; by default that of ``args``.
        elsewhere (`bool`): whether the run is planned for another machine.
        quantization, adapter: transformers' config of quantised weights, and PEFT's of a new adapter; `None` for none.
        init: options of loading over those of ``args.model_init_kwargs``.
    """

    args: AlignOPSDConfig
    method: Method
    model: Any
    tasks: Any
    skill_bank: Any = None
    encoder: Any = None
    has_tokenizer: bool = False
    own_environment: bool = True
    rewards: int = 0
    groups: int | None = None
    factory: Any = None
    privileged: Any = None
    elsewhere: bool = False
    quantization: Any = None
    adapter: Any = True
    init: Mapping[str, Any] | None = None

    @property
    def columns(self) -> list[str] | None:
        return getattr(self.tasks, "column_names", None)

    @cached_property
    def described(self) -> bool:
        """Whether the model is planned for another machine by a folder with a ``config.json`` and no weights."""
        if not (self.elsewhere and isinstance(self.model, str)):
            return False
        folder = Path(resolve_model(self.model)).expanduser()
        return (folder / "config.json").is_file() and not any(map(any, map(folder.glob, ("*.safetensors", "*.bin"))))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer of a policy's folder, after a check of its files; `None` if there is none to check."""
        if not isinstance(self.model, str) or self.described:
            return None
        options, template = as_mapping(self.args.model_init_kwargs), as_mapping(self.args.chat_template_kwargs)
        trusts = bool(options.get("trust_remote_code", self.args.trust_remote_code))
        options |= {} if self.elsewhere else dict(self.init or {})  # attention that only the other machine has
        judge = partial(check_architecture, args=self.args, method=self.method)
        return check_policy(self.model, template, not self.has_tokenizer, trusts, judge=judge, init=options)


def check(intended: Intended) -> None:
    """Runs all checks. Raises `ValueError` at the first problem that would spoil the run; the message names argument,
    value and remedy."""
    for one in CHECKS:
        one(intended)


def _settings(run: Intended) -> None:
    if not run.method.trains:
        raise ValueError(f"method={run.method.name!r} trains nothing; evaluate it with alignopsd evaluate")
    if run.args.max_steps == 0 or run.args.max_steps < -1:
        raise ValueError(
            f"max_steps={run.args.max_steps} must be 1 or more, or -1 to train for num_train_epochs="
            f"{run.args.num_train_epochs:g}"
        )
    check_settings(run.args, run.elsewhere)
    adapter = run.adapter or (isinstance(run.model, str) and base_of(run.model) is not None)
    check_quantised(run.quantization, run.args, adapter, run.elsewhere)


def _model(run: Intended) -> None:
    if run.tokenizer is not None:
        check_template(run.tokenizer, PlayOptions.of(run.args))
    folder = Path(resolve_model(base_of(run.model) or run.model)).expanduser() if isinstance(run.model, str) else None
    adapts = hasattr(run.adapter, "peft_type") and not run.described
    if folder and adapts and (folder / "config.json").is_file():
        put_adapter(empty_model(folder, run.args.trust_remote_code), run.adapter)


def _skills(run: Intended) -> None:
    method, source, siblings = run.method, run.privileged or run.args.privileged, run.args.privileged_siblings
    if source is not None:
        load_source(source)
    asking = (method.needs_teacher and source is None) or method.skills_in_rollout
    if run.skill_bank is None and (asking or siblings):
        asks = f"privileged_siblings={siblings} read a skill in their prompts, so there must be"
        asks = f"method={method.name!r} needs" if asking else asks
        raise ValueError(
            f"{asks} a skill_bank: pass 'webshop', 'alfworld', 'searchqa', a file's path, a column of the dataset, or "
            f"a function from a task's text and its row to a text{'; or set privileged' * asking}"
        )
    if siblings and method.skills_in_rollout:
        raise ValueError(
            f"privileged_siblings={siblings}: with method={method.name!r} all siblings read the skill; use 0"
        )
    if run.skill_bank is not None:
        load_skills(run.skill_bank, columns=run.columns or ())


def _encoder(run: Intended) -> None:
    if run.encoder is None and run.method.needs_encoder:
        known = "'lexical' or a sentence-transformers id or path"
        raise ValueError(f"method={run.method.name!r} needs an encoder: pass {known}")
    if isinstance(run.encoder, str):
        check_encoder(run.encoder)


def _rewards(run: Intended) -> None:
    settled_weights(run.args.reward_weights, run.rewards)
    if not run.method.needs_turn_advantages:
        return
    asks = f"method={run.method.name!r}"
    if run.rewards or run.args.reward_weights not in (None, [1.0]):
        raise ValueError(f"{asks} walks for the environment's own reward alone; remove reward_funcs and reward_weights")
    if run.args.history != "window":
        raise ValueError(f"{asks} replays actions, which make no conversation; use history='window'")


def settled_weights(weights: list[float] | None, functions: int) -> list[float] | None:
    """Returns the weights of the environment's own reward (1 by default) and of so many reward functions; `None` for
    none. Raises `ValueError` if there are too many or too few."""
    if weights is None or len(weights) == functions + 1:
        return weights
    if len(weights) != functions:
        raise ValueError(
            f"reward_weights has {len(weights)} entries for {functions} reward_funcs; give one each (the environment's "
            "own reward has weight 1), or one more in front for the environment's"
        )
    return [1.0, *weights]


def _rows(run: Intended) -> None:
    refuse_stream(run.tasks, "train_dataset")
    if run.tasks is None or (run.columns is not None and "task_id" not in run.columns):
        raise ValueError(f"train_dataset needs a column 'task_id' (one row per task); it has {run.columns}")
    if run.own_environment:
        refuse_given(run.columns or (), "train_dataset")
    ids = list(run.tasks["task_id"]) if isinstance(run.tasks, Dataset) else []
    if None in ids:
        raise ValueError(f"train_dataset: row {ids.index(None)} has no task_id; give each task one of its own")
    twice = len(ids) - len(set(ids))
    if twice and run.own_environment:
        raise ValueError(f"train_dataset: {twice} of {len(ids)} task_ids occur twice; give each row its own")
    needed = run.groups or run.args.generation_batch_size // run.args.num_generations
    if isinstance(run.tasks, Dataset) and len(run.tasks) < needed:
        raise ValueError(
            f"train_dataset has {len(run.tasks)} tasks, but one round needs {needed} (generation_batch_size / "
            "num_generations, or tasks_per_round of a recipe)"
        )


def _sessions(run: Intended) -> None:
    """Counts an OpenEnv server's sessions, on rank 0 for all processes."""
    if not isinstance(run.factory, OpenEnvEnvironment) or int(os.environ.get("RANK", "0")):
        return
    args = run.args
    a_process = args.per_device_train_batch_size * args.steps_per_generation
    played = run.groups * args.num_generations if run.groups else args.generation_batch_size
    episodes = args.episodes_at_once * (played // a_process)
    remedy = "lower per_device_train_batch_size or tasks_per_round, and per_device_eval_batch_size"
    check_sessions(run.factory, episodes, next(iter(run.tasks)), args.environment_time_limit, remedy)


def _task(run: Intended) -> None:
    """Opens the first task of a user's environment in four slots, and again after a step, and writes the first prompts
    of any, on rank 0. Skips a factory with a ``batch`` of its own, which may take long to make."""
    loaded = loaded_as(run.factory)
    shipped = loaded is not None and loaded.name in SHIPPED  # whose tests say that siblings start alike
    factory = partial(run.factory) if shipped else run.factory
    if not tasks.opens_one(factory) or not isinstance(run.tasks, Dataset) or int(os.environ.get("RANK", "0")):
        return
    if shipped and run.elsewhere:  # a plan needs no packages of a benchmark
        return
    with contextlib.chdir("."):  # restores the working directory if the user's code changes it
        found = [] if shipped else list(tasks.starts(factory, [run.tasks[0]], run.args.environment_time_limit))
    for finding in found:
        if finding.about in tasks.FATAL:
            raise ValueError(f"{finding.text} (alignopsd check says more)")
    if run.tokenizer is not None:
        rows = [run.tasks[row] for row in range(min(tasks.TRIED, len(run.tasks)))]
        options = PlayOptions.of(run.args)
        tasks.check_first_prompts(factory, rows, run.tokenizer, options, run.args.environment_time_limit)


OWN_TRACKERS = {"wandb": ("wandb",), "trackio": ("trackio",), "tensorboard": ("tensorboard", "tensorboardX")}
TRACKERS = OWN_TRACKERS | {
    **{"all": (), "kubeflow": (), "azure_ml": ("azureml",), "flyte": ("flytekit",)},
    **{name: (name,) for name in ("clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "mlflow", "neptune")},
    "swanlab": ("swanlab",),
}
"""Maps trackers to packages, of which one is needed; importing transformers' own list takes seconds."""


def _reports(run: Intended) -> None:
    for name in run.args.report_to or ():
        if (packages := TRACKERS.get(name)) is None:
            known = near(name, [*TRACKERS])
            raise ValueError(f"report_to={name!r} is unknown; {known}use one of none, {', '.join(TRACKERS)}")
        if packages and not any(map(find_spec, packages)):
            wanted = f"'alignopsd-trl[{name}]'" if name in OWN_TRACKERS else packages[0]
            missing = f"the package {packages[0]} is not installed; pip install {wanted}"
            raise ValueError(f"report_to={name!r}: {missing}, or leave it out")
    if run.args.push_to_hub:
        check_hub(run.args.hub_token)


def check_hub(token: str | None, asked: str = "push_to_hub=True") -> None:
    """Checks at the start of a run that its push to the Hub can work. Raises `ValueError` if there is no token, or the
    Hub is switched off."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise ValueError(f"{asked}: HF_HUB_OFFLINE is set; unset it, or push later with alignopsd push")
    if not (token or get_token()):
        raise ValueError(
            f"{asked}: there is no token of the Hub; run hf auth login, set HF_TOKEN, or push later with alignopsd push"
        )


CHECKS = (_settings, _rows, _rewards, _skills, _encoder, _reports, _model, _sessions, _task)


# Settings of TRL and transformers: what a run would meet only after it has played a round


def check_settings(args: AlignOPSDConfig, elsewhere: bool = False) -> None:
    """Makes what transformers makes of these settings when training begins, for a model of one weight. A run planned
    for ``elsewhere`` may have a GPU and several processes. Raises `ValueError` with setting, problem and remedy."""
    if args.fp16 and not elsewhere and (args.use_cpu or not torch.accelerator.is_available()):
        raise ValueError("fp16=True needs a GPU, and this run has none; leave it out, or set bf16=True")
    if args.fsdp and not elsewhere and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        raise ValueError(
            f"fsdp={args.fsdp!r} needs several processes; leave it out, and launch with "
            "accelerate launch --config_file $(alignopsd --files fsdp2)"
        )
    accelerator: Any = args.accelerator_config
    for name in ("dispatch_batches", "split_batches"):
        if getattr(accelerator, name):
            raise ValueError(f"accelerator_config={{{name!r}: true}} would cut sibling groups apart; leave it out")
    if not accelerator.even_batches:
        raise ValueError(
            "accelerator_config={'even_batches': false} changes nothing: all rounds are even; leave it out"
        )
    loads: Any = {name: f"dataloader_{name}" for name in ("num_workers", "persistent_workers", "prefetch_factor")}
    with _named(args, *loads.values()):
        DataLoader([0], **{name: getattr(args, field) for name, field in loads.items()})  # ty: ignore[invalid-argument-type]
    if args.sync_ref_model and not args.beta:
        raise ValueError("sync_ref_model=True moves a reference model, which beta=0 has not; set beta, or leave it out")
    _check_generation(args)
    chooses, known = args.metric_for_best_model or BEST, [BEST, "episodes/skill_items", *rollout_sums(())]
    if "last_step/" not in chooses and not any(map(chooses.endswith, known)):
        raise ValueError(
            f"metric_for_best_model={chooses!r} is no number of an evaluation; {near(chooses, known)}leave it out "
            f"(then it is {BEST!r}), or name another, such as 'episodes/score'"
        )
    with _named(args, "optim", "optim_args", "optim_target_modules"):
        layers: Any = torch.nn.Module()
        layers.linear = torch.nn.Linear(1, 1)  # GaLore and others look for layers by name
        kind, given = Trainer.get_optimizer_cls_and_kwargs(args, layers)
    if args.deepspeed is None:  # whose file may bring both
        _check_schedule(args, kind, given)


def _check_generation(args: AlignOPSDConfig) -> None:
    given = as_mapping(args.generation_kwargs)
    if not args.use_vllm and (unknown := sorted(set(given) - set(vars(GenerationConfig())))):
        raise ValueError(f"generation_kwargs[{unknown[0]!r}] is no option of transformers' generate; leave it out")
    if "stop_strings" in given:
        raise ValueError("generation_kwargs['stop_strings'] ends no response here; leave it out")
    with _named(args, "generation_kwargs", "cache_implementation"):
        options = {} if args.use_vllm else given
        GenerationConfig(**options, cache_implementation=args.cache_implementation).validate(strict=True)


def _check_schedule(args: AlignOPSDConfig, kind: Any, given: dict[str, Any]) -> None:
    with _named(args, "optim", "optim_args"):
        optimizer = kind([torch.nn.Parameter(torch.zeros(1))], **given)
    steps = max(args.max_steps, 1)
    if args.lr_scheduler_type != "constant" and 0 < args.max_steps < args.get_warmup_steps(steps):
        raise ValueError(
            f"warmup_steps={args.warmup_steps:g} is more than the run's {steps} optimiser steps, which would never "
            "reach the learning rate; lower it, or raise rounds or max_steps"
        )
    with _named(args, "lr_scheduler_type", "lr_scheduler_kwargs", remedy="; give it in lr_scheduler_kwargs, as JSON"):
        get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=as_mapping(args.lr_scheduler_kwargs),
        )


@contextlib.contextmanager
def _named(args: AlignOPSDConfig, *names: str, remedy: str = "") -> Generator[None]:
    """Raises what a library refuses as `ValueError`, with the settings that it was given."""
    try:
        yield
    except (ImportError, TypeError, ValueError, RuntimeError, KeyError, AssertionError) as error:
        usual = {one.name: one.default for one in fields(AlignOPSDConfig)}
        said = {name: getattr(args, name) for name in names}
        given = [f"{name}={getattr(one, 'value', one)!r}" for name, one in said.items() if one != usual[name]]
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{', '.join(given) or names[0]}: {problem}{remedy}") from error
