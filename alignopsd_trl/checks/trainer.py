"""Checks of a trainer's rewards and tokenizer, and what adapts classes and datasets that were written for TRL's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from accelerate.utils import is_peft_model
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from alignopsd_trl.checks.intended import settled_weights
from alignopsd_trl.checks.loading import beyond_positions, check_architecture, check_quantised
from alignopsd_trl.checks.tasks import check_chat
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import BEST, AlignOPSDConfig
from alignopsd_trl.environments.adapters import AdaptedEnvironment, as_environment, check_rows, row_id, with_task_ids
from alignopsd_trl.environments.adapters.calls import without_calls
from alignopsd_trl.environments.adapters.rows import messages_of
from alignopsd_trl.methods import Method
from alignopsd_trl.rollout.conversations import notes_of
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.runs.health import weights_are_finite
from alignopsd_trl.scoring.trl_trainer import why_not_shared
from alignopsd_trl.turns import Trajectory, Turn

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer

logger = logging.getLogger(__name__)


def checked_rewards(factory: Any, given: Callable | list[Callable] | None, args: AlignOPSDConfig) -> list[Callable]:
    """Returns the user's reward functions as a list, and settles their weights and that of the environment's own reward
    (1 by default) in ``args``. Raises `ValueError` if nothing rewards the episodes, or there are too many or too few
    weights."""
    functions = [] if given is None else given if isinstance(given, list) else [given]
    if isinstance(factory, AdaptedEnvironment) and not factory.owns_reward and not functions:
        raise ValueError(
            f"nothing rewards the episodes of {factory.__name__}: give it a method get_reward(), or pass reward_funcs"
        )
    args.reward_weights = settled_weights(args.reward_weights, len(functions))
    return functions


def check_made(trainer: Any, processes: ProcessGroup) -> list[str]:
    """Checks what a trainer has loaded after TRL's part of its construction, and returns notes about it. Raises
    `ValueError` if the policy, its weights or its tokenizer can't be trained with these settings."""
    args, tokenizer, policy = trainer.args, trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError("processing_class must be a tokenizer: prompts are text")
    if tokenizer.eos_token_id is None:
        raise ValueError("processing_class has no eos_token, which ends a turn; set tokenizer.eos_token")
    check_architecture(policy, args, trainer.method)
    check_quantised(getattr(policy.config, "quantization_config", None), args, is_peft_model(policy))
    if processes.agree(int(not weights_are_finite(trainer.model))):
        name = f"{'the adapter on ' * is_peft_model(policy)}model={policy.config._name_or_path!r}"
        raise ValueError(f"the weights of {name} are not finite; copy it again, or take an earlier one")
    options = PlayOptions.of(args)
    check_chat(trainer.environment_factory, tokenizer, options)
    positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
    told = beyond_positions(positions, args), *notes_of(tokenizer, options, trainer.eos_token_ids)
    return list(filter(None, told))


def shares_prefixes(trainer: Trainer, method: Method) -> bool:
    """Returns whether responses scored under one prompt share its encoding; warns where the model can't."""
    reason = why_not_shared(trainer)
    if reason and trainer.args.share_prefixes and method.needs_teacher and trainer.accelerator.is_main_process:
        logger.warning(f"share_prefixes=True scores each pair of prompt and response alone with this model: {reason}")
    return trainer.args.share_prefixes and reason is None


# Tool classes, datasets and rewards that were written for TRL's own trainer


def adapted(
    factory: Any, tools: Sequence[Callable] | None, train: Any, evaluation: Any, args: AlignOPSDConfig
) -> tuple[Any, Any, Any]:
    """Adapts the factory and both datasets to the trainer. Those of this project's convention are returned unchanged.
    Raises `TypeError` if the factory's objects can't be played, `ValueError` if not with these datasets."""
    made = as_environment(
        factory,
        tuple(tools or ()),
        max_turns=args.max_turns or 50,
        max_tool_calling_iterations=args.max_tool_calling_iterations,
        seeded="seed" in (getattr(train, "column_names", None) or ()),
    )
    evaluation = None if evaluation is None else to_evaluate(evaluation, made)
    if isinstance(evaluation, dict) and args.metric_for_best_model in (BEST, f"eval_{BEST}"):
        raise ValueError(
            f"eval_dataset has several sets, {', '.join(evaluation)}: name the one that chooses checkpoints, for "
            f"example metric_for_best_model='eval_{next(iter(evaluation))}_{BEST}'"
        )
    if not isinstance(made, AdaptedEnvironment):
        return made, train, evaluation
    train = _placeholder(args) if train is None else train
    check_rows(train, "train_dataset")
    left = {"messages", "conversations"} & set(train.column_names or ())
    if left and "prompt" not in train.column_names:
        logger.warning(
            f"train_dataset has a column {min(left)!r}, which reset() gets and no prompt shows; rename it to 'prompt' "
            "if it is one"
        )
    return made, with_task_ids(train), evaluation


def to_evaluate(dataset: Any, factory: Any, name: str = "eval_dataset") -> Any:
    """Returns a dataset, a list of rows or a dict of these as datasets of rows with a ``task_id``. Raises `ValueError`
    for anything else, and for a row without it that is not of TRL's convention."""
    if isinstance(dataset, dict):
        return {key: to_evaluate(one, factory, f"{name}[{key!r}]") for key, one in dataset.items()}
    if not isinstance(dataset, Dataset | list):
        raise ValueError(f"{name} is of type {type(dataset).__name__}; pass a datasets.Dataset, or a list of rows")
    table = Dataset.from_list(dataset) if isinstance(dataset, list) else dataset
    if isinstance(factory, AdaptedEnvironment):
        check_rows(table, name)
        table = with_task_ids(table)
    ids = list(table["task_id"]) if "task_id" in table.column_names else [None]
    if None in ids:
        raise ValueError(f"{name}: row {ids.index(None)} has no task_id; give each task one of its own")
    return table


def _placeholder(args: AlignOPSDConfig) -> Dataset:
    """Makes a round of rows without a prompt, for an environment that brings its own tasks as in TRL."""
    if args.max_steps <= 0:
        raise ValueError(
            "without a train_dataset the environment gives the prompt, and max_steps says how long to train; set it"
        )
    numbers = range(args.generation_batch_size // args.num_generations)
    empty = [[{"role": "user", "content": ""}] for _ in numbers]
    return Dataset.from_dict({"prompt": empty, "task_id": [row_id({"number": number}) for number in numbers]})


def conversation(
    trajectory: Trajectory, environment: AdaptedEnvironment | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns prompt and completion of a finished episode as messages, as TRL passes them to reward functions. The
    ``environment`` that played it is `None` if it has failed."""
    prompt = environment.messages if environment is not None else messages_of(trajectory.row)
    said = environment.said if environment is not None else []
    said = said or [_said(turn) for turn in trajectory.turns]
    return [dict(message) for message in prompt], [dict(message) for turn in said for message in turn]


def _said(turn: Turn) -> list[dict[str, Any]]:
    """Returns a response, and the answers of the tools that it called or of the environment."""
    calls = turn.info.get("calls", [])
    seen = [{"role": "user", "content": turn.observation}] if "calls" not in turn.info and turn.observation else []
    message: dict[str, Any] = {"role": "assistant", "content": without_calls(turn.response_text)}
    if turn.thought.thinking:
        message["reasoning_content"] = turn.thought.thinking
    if calls:
        asked = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
        message["tool_calls"] = [{"type": "function", "function": one} for one in asked]
    return [message, *({"role": "tool", "name": one["name"], "content": one["result"]} for one in calls), *seen]
