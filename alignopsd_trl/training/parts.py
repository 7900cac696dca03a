"""Checks a trainer's arguments before its weights are loaded, and makes its parts, in the order in which they need each
other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from alignopsd_trl.checks.intended import Intended
from alignopsd_trl.checks.trainer import adapted, check_made, checked_rewards, shares_prefixes
from alignopsd_trl.common import strategies
from alignopsd_trl.common.cores import use_what_is_left
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.adapters import AdaptedEnvironment
from alignopsd_trl.methods import get_method
from alignopsd_trl.rollout.episode import no_skills
from alignopsd_trl.runs.files import LOG_FILE
from alignopsd_trl.runs.health import FailedShare
from alignopsd_trl.sampling.backend import Backend, Samplers
from alignopsd_trl.scoring.teacher import TeacherWeights
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.skills import CONTEXT, SkillSpec, load_skills, skill_source
from alignopsd_trl.skills.turn_texts import SourceSpec, TurnTexts, load_source
from alignopsd_trl.training.checkpoints import Checkpoints
from alignopsd_trl.training.console import Lines, show_note
from alignopsd_trl.training.loss import Drift, Update
from alignopsd_trl.training.order import WholeRounds
from alignopsd_trl.training.panels import Panels
from alignopsd_trl.training.phases import Phases, Seconds, Status
from alignopsd_trl.training.recorder import LogFile, Recorder, SecondsOfRounds
from alignopsd_trl.training.rewards import RewardCheck, Rewards, environment_reward
from alignopsd_trl.training.rollouts import Rollouts
from alignopsd_trl.training.scorer import Scorer
from alignopsd_trl.training.trl_construction import initial_weights, loaded_whole, settle
from alignopsd_trl.training.trl_policy import TrainedPolicy, TrainerLog
from alignopsd_trl.training.turn_rows import RowMaker


def settle_arguments(
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
) -> tuple[Intended, Any, list[Any], RewardCheck]:
    """Settles what a trainer's arguments leave open. Returns all that `checks` knows of, in this package's convention,
    the evaluation dataset, and the reward functions with the check of their values.

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
    run = replace(run, own_environment=not isinstance(factory, AdaptedEnvironment), rewards=len(own), **more)
    return run, eval_dataset, [reward_check.wrap(one) for one in (environment_reward, *own)], reward_check


def check_loaded(trainer: Any) -> ProcessGroup:
    """Checks what a trainer has loaded, prints notes about it, and returns the processes that train."""
    settle(trainer)
    processes = ProcessGroup(trainer.accelerator)
    for note in check_made(trainer, processes):
        show_note(note, processes.process)
    return processes


@dataclass(frozen=True)
class Parts:
    """What a trainer holds; docs/design.md says what each part does.

    Attributes:
        skill_bank, encoder: `None` where the trainer was given none.
        teacher_weights: `None` where the policy is its own teacher or no teacher is needed.
    """

    skill_bank: Any
    encoder: Any
    teacher_weights: TeacherWeights | None
    phases: Phases
    checkpoints: Checkpoints
    rollouts: Rollouts
    backend: Backend
    samplers: Samplers
    recorder: Recorder
    rewards: Rewards
    texts: TurnTexts | None
    scorer: Scorer
    row_maker: RowMaker
    panels: Panels
    update: Update


def make_parts(trainer: Any, skill_bank: SkillSpec | None, encoder: Any, reward_check: RewardCheck) -> Parts:
    """Makes the parts of a trainer. None of them holds it: they get its policy and its log.

    Args:
        trainer: after TRL's part of its construction, with its method, factory, texts of turns and processes.
    """
    args, tokenizer, processes = trainer.args, trainer.processing_class, trainer.processes
    policy, log = TrainedPolicy(trainer), TrainerLog(trainer)
    seconds, failed = Seconds(), FailedShare(args.max_failed_share)
    status = Status(args, processes, policy, seconds)
    phases = Phases(status.show_phase)
    with loaded_whole():
        encoder = None if encoder is None else load_encoder(encoder, device=trainer.accelerator.device)
    names = getattr(trainer.train_dataset, "column_names", None) or ()
    bank = None if skill_bank is None else load_skills(skill_bank, encoder, names)
    teacher = _teacher_weights(trainer)
    checkpoints = Checkpoints(Path(args.output_dir), processes, policy, seconds, phases, failed)
    rollouts = trainer.make_rollouts(
        factory=trainer.environment_factory,
        config=args,
        tokenizer=tokenizer,
        end_ids=trainer.eos_token_ids,
        processes=processes,
        skills=no_skills if bank is None else skill_source(bank, tokenizer, args.skill_budget),
        failed=failed,
        save=checkpoints.save_last,
        beyond=status.updates_left,
    )
    backend = trainer.make_backend()
    samplers = Samplers(args, backend, teacher, rollouts.slots)
    recorder = Recorder(args, processes, tokenizer, log)
    functions = trainer.reward_funcs, trainer.reward_func_names, trainer.reward_weights
    rewards = Rewards(policy, *functions, reward_check, rollouts, processes, log)
    drift, later = Drift(args, processes, recorder), trainer.privileged
    texts = later is not None and trainer.method.needs_teacher
    return Parts(
        skill_bank=bank,
        encoder=encoder,
        teacher_weights=teacher,
        phases=phases,
        checkpoints=checkpoints,
        rollouts=rollouts,
        backend=backend,
        samplers=samplers,
        recorder=recorder,
        rewards=rewards,
        texts=TurnTexts(later, tokenizer, args.skill_budget) if texts else None,
        scorer=Scorer(
            policy,
            PolicyScorer(trainer),
            PolicyScorer(trainer, reference=True) if args.beta != 0.0 else None,
            PolicyScorer(trainer, teacher=teacher) if teacher else None,
            args,
            tokenizer,
            encoder,
            processes,
            phases,
            shared=shares_prefixes(trainer, trainer.method),
        ),
        row_maker=RowMaker(args, processes, tokenizer.pad_token_id, tokenizer.eos_token_id, policy, recorder),
        panels=Panels(policy, samplers, rollouts, rewards, processes, seconds, trainer.train_dataset),
        update=Update(policy, trainer.accelerator, args, trainer.method, processes, drift),
    )


def callbacks_of(parts: Parts) -> list[TrainerCallback]:
    """Returns the parts that TRL calls during a run, and the writers of its console and log."""
    args, recorder, update = parts.recorder.config, parts.recorder, parts.update
    shown = [Lines(), LogFile(Path(args.output_dir) / LOG_FILE)]
    updates = args.steps_per_round.numerator
    rounds = [WholeRounds(updates), SecondsOfRounds(recorder, parts.phases, updates)]
    taught = [] if parts.teacher_weights is None else [parts.teacher_weights]
    return [*rounds, *shown, parts.checkpoints, update.drift, update, *taught]


def _teacher_weights(trainer: Any) -> TeacherWeights | None:
    kind = trainer.args.teacher_model_kind
    if kind == "live" or not (trainer.method.needs_teacher or trainer.args.privileged_siblings):
        return None
    strategies.refuse_other_shards(trainer.accelerator, f"teacher_model_kind={kind!r}")
    return initial_weights(trainer)
