"""Adapts tool classes, datasets and rewards that were written for TRL's own trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset

from alignopsd_trl.config import BEST, AlignOPSDConfig
from alignopsd_trl.environments.adapters import AdaptedEnvironment, as_environment, check_rows, row_id, with_task_ids
from alignopsd_trl.environments.adapters.calls import without_calls
from alignopsd_trl.environments.adapters.rows import messages_of
from alignopsd_trl.turns import Trajectory, Turn


def is_adapted(factory: Any) -> bool:
    """Returns whether episodes are played through an adapter of `alignopsd_trl.environments.adapters`."""
    return isinstance(factory, AdaptedEnvironment)


def adapted(
    factory: Any, tools: Sequence[Callable] | None, train: Any, evaluation: Any, args: AlignOPSDConfig
) -> tuple[Any, Any, Any]:
    """Adapts the factory and both datasets to the trainer. Those of this project's convention are returned unchanged.

    Raises:
        TypeError: if the factory's objects can't be played.
        ValueError: for a dataset that it can't be played with.
    """
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
    if not is_adapted(made):
        return made, train, evaluation
    train = _placeholder(args) if train is None else train
    check_rows(train, "train_dataset")
    return made, with_task_ids(train), evaluation


def to_evaluate(dataset: Any, factory: Any, name: str = "eval_dataset") -> Any:
    """Returns a dataset, a list of rows or a dict of these as datasets of rows with a ``task_id``. Raises `ValueError`
    for anything else, and for a row without it that is not of TRL's convention."""
    if isinstance(dataset, dict):
        return {key: to_evaluate(one, factory, f"{name}[{key!r}]") for key, one in dataset.items()}
    if not isinstance(dataset, Dataset | list):
        raise ValueError(f"{name} is of type {type(dataset).__name__}; pass a datasets.Dataset, or a list of rows")
    table = Dataset.from_list(dataset) if isinstance(dataset, list) else dataset
    if is_adapted(factory):
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


def check_rewarded(factory: Any, reward_funcs: Sequence[Any]) -> None:
    """Raises `ValueError` if neither the environment nor a function rewards episodes."""
    if is_adapted(factory) and not factory.owns_reward and not reward_funcs:
        raise ValueError(
            f"nothing rewards the episodes of {factory.__name__}: give it a method get_reward(), or pass reward_funcs"
        )


def conversation(
    trajectory: Trajectory, environment: AdaptedEnvironment | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns prompt and completion of an episode as messages, as TRL passes them to reward functions.

    Args:
        trajectory (`Trajectory`): a finished episode.
        environment (`AdaptedEnvironment` or `None`): the environment that played it; `None` if it has failed.
    """
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
