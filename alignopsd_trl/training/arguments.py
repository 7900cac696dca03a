"""Checks a trainer's arguments before its weights are loaded, and what it has loaded afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignopsd_trl.checks.intended import Intended, check
from alignopsd_trl.checks.trainer import adapted, check_made, checked_rewards
from alignopsd_trl.common.cores import use_what_is_left
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments.adapters import AdaptedEnvironment
from alignopsd_trl.methods import get_method
from alignopsd_trl.skills import CONTEXT, SkillSpec
from alignopsd_trl.skills.turn_texts import SourceSpec, load_source
from alignopsd_trl.training.console import show_note
from alignopsd_trl.training.rewards import RewardCheck, environment_reward
from alignopsd_trl.training.trl_construction import settle


@dataclass(frozen=True)
class Arguments:
    """The arguments of a trainer, checked.

    Attributes:
        run: all that `checks` knows of; its environments, tasks and skill bank are of this package's convention.
        reward_funcs: the environment's own reward and the user's functions, whose values ``reward_check`` verifies.
    """

    run: Intended
    eval_dataset: Any
    reward_funcs: list[Any]
    reward_check: RewardCheck


def check_arguments(
    model: Any,
    args: AlignOPSDConfig | None,
    environment_factory: Any,
    train_dataset: Any,
    eval_dataset: Any,
    skill_bank: SkillSpec | None,
    encoder: Any,
    reward_funcs: Callable | list[Callable] | None,
    privileged: SourceSpec | None,
    tools: list[Callable] | None,
    **more: Any,
) -> Arguments:
    """Checks a trainer's arguments, and settles what they leave open.

    Args:
        more: of `Intended`, about what TRL makes by itself.

    Raises:
        TypeError, ValueError: as `AlignOPSDTrainer`.
    """
    model = resolve_model(model) if isinstance(model, str) else model
    args = args if args is not None else AlignOPSDConfig(f"{Path(str(model)).name}-AlignOPSD")
    if not isinstance(args, AlignOPSDConfig):
        raise TypeError(f"args must be an AlignOPSDConfig, got {type(args).__name__}")
    if args.device.type == "cpu" and (told := use_what_is_left()):
        show_note(told)
    source = args.privileged if privileged is None else privileged
    source = None if source is None else load_source(source)
    args.privileged = None if source is None else source.name
    method = get_method(args.method)(args)
    factory, train_dataset, eval_dataset = adapted(environment_factory, tools, train_dataset, eval_dataset, args)
    if skill_bank is None and source is None and CONTEXT in (getattr(train_dataset, "column_names", None) or ()):
        skill_bank = CONTEXT
    own, reward_check = checked_rewards(factory, reward_funcs, args), RewardCheck()
    run = Intended(args, method, model, train_dataset, skill_bank, encoder, factory=factory, privileged=source)
    run = replace(run, own_environment=not isinstance(factory, AdaptedEnvironment), rewards=bool(own), **more)
    check(run)
    return Arguments(run, eval_dataset, [reward_check.wrap(one) for one in (environment_reward, *own)], reward_check)


def check_loaded(trainer: Any) -> ProcessGroup:
    """Checks what a trainer has loaded, prints notes about it, and returns the processes that train.

    Raises:
        ValueError: if the policy, its weights or its tokenizer can't be trained with these settings.
    """
    settle(trainer)
    processes = ProcessGroup(trainer.accelerator)
    for note in check_made(trainer, processes):
        if processes.process == 0:
            show_note(note)
    return processes
