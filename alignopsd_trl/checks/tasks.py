"""Cheap checks of a task, for `alignopsd check` and recipes: its rows, the resets of siblings, a server's sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.common.progress import cut
from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.base import Failure, Opening, View
from alignopsd_trl.environments.batch import ValidatedBatch, open_batch
from alignopsd_trl.rollout.conversations import check_template
from alignopsd_trl.rollout.episode import SiblingsDiffer, check_openings, episode_seeds, given_to_reset
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.reading import require_tools
from alignopsd_trl.rollout.renderer import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TRIED = 4  # tasks that are opened
SIBLINGS = 4
SECONDS = 10.0  # after which no further task is opened
Row = Mapping[str, Any]
FAILED_RESET = "failed reset"
FATAL = ("siblings", "reset", "random numbers")
"""Findings of these kinds end any run; others cost episodes or learning."""


@dataclass(frozen=True)
class Finding:
    """A problem that would harm a run.

    Args:
        about: the kind of problem, in a word or two.
        text: the observation, and its remedy.
        ruins: whether it spoils a run; else it is only worth a look.
    """

    about: str
    text: str
    ruins: bool = True

    def __str__(self) -> str:
        return f"{'WRONG' if self.ruins else 'look '} {self.about}: {self.text}"


look = partial(Finding, ruins=False)
"""Makes a finding that is only worth a look."""


def refuse_given(columns: Iterable[str], where: str) -> None:
    """Raises `ValueError` for a column that `reset` gets from the trainer, where its class is of this project's
    convention."""
    if taken := {"seed", "dynamics_seed"} & set(columns):
        raise ValueError(f"{where} has a column {max(taken)!r}, which reset() gets from the trainer; rename it")


def refuse_stream(rows: Any, where: str) -> None:
    """Raises `ValueError` for rows that can't be counted, such as those of an ``IterableDataset``."""
    if rows is not None and not hasattr(rows, "__len__"):
        raise ValueError(
            f"{where} is of the class {type(rows).__name__}, whose tasks can't be counted or drawn again; give a "
            "datasets.Dataset, as Dataset.from_list(list(rows)) makes one"
        )


def trained_on(tasks: int, held_out: int | None) -> int:
    """Returns how many of the training tasks are learnt from: all but the last ``held_out``. Raises `ValueError` if
    there are none, or none is left."""
    if not tasks:
        raise ValueError("it has no tasks; name a split with tasks, or correct the environment's tasks()")
    if (held_out or 0) >= tasks:
        raise ValueError(f"held_out={held_out} leaves none of {tasks} training tasks; lower it")
    return tasks - (held_out or 0)


def starts(
    factory: Callable[[], Any], rows: Sequence[Row], time_limit: float, seconds: float = SECONDS
) -> Iterator[Finding]:
    """Resets siblings of some tasks, and again after a step, where no task begins after so many ``seconds``; yields
    findings if they fail or differ."""
    with closing(open_batch(factory, SIBLINGS, time_limit, here=True)) as batch:
        seed, end = torch.initial_seed(), time.monotonic() + seconds
        for row in rows[:TRIED]:
            found = list(_siblings(batch, row))
            yield from found
            if found:
                return
            if time.monotonic() > end:
                break
        if torch.initial_seed() != seed:
            yield Finding(
                "random numbers",
                "the environment calls torch.manual_seed, which sets the numbers that the policy is sampled with; draw "
                "from a torch.Generator of its own",
            )


def check_prompts(factory: Any, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, options: PlayOptions) -> None:
    """Checks a chat template, and the first prompts of some tasks, unless the factory has a ``batch`` of its own or a
    server, which may take long to open. Raises `ValueError` as `check_chat` and `check_first_prompts`."""
    check_chat(factory, tokenizer, options)
    if opens_one(factory):
        check_first_prompts(factory, rows, tokenizer, options, time_limit=60.0)


def check_chat(factory: Any, tokenizer: PreTrainedTokenizerBase, options: PlayOptions) -> None:
    """Checks a chat template, and that it shows tools if the factory's prompts need it to. Raises `ValueError` as
    `require_tools` and `check_template`."""
    native = getattr(getattr(factory, "prompt", None), "native", False)
    if native:
        require_tools(tokenizer)
    check_template(tokenizer, options, native)


def opens_one(factory: Any) -> bool:
    """Returns whether a factory makes a single environment in this process, which opens no session elsewhere."""
    elsewhere = isinstance(factory, OpenEnvEnvironment) or getattr(factory, "opens_sessions", False)
    return factory is not None and not hasattr(factory, "batch") and not elsewhere


def check_first_prompts(
    factory: Any, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, options: PlayOptions, time_limit: float
) -> None:
    """Opens some tasks, and renders their first prompts with the policy's chat template. Raises `ValueError` if none of
    the tasks opens; if the environment's prompt or the template fails; if all prompts are longer than
    ``options.max_prompt_length``."""
    rows, lengths = rows[:TRIED], []
    batch = open_batch(factory, len(rows), time_limit, here=True)
    try:
        openings = batch.reset(range(batch.slots), [seeded(batch, row) for row in rows[: batch.slots]])
        for opening in openings:
            if isinstance(opening, Failure):
                continue
            renderer = Renderer(tokenizer, batch.prompt, options)
            view = View(opening.task_text, opening.observation, opening.admissible, (), 0, opening.context)
            if getattr(batch.prompt, "native", False):
                require_tools(tokenizer)
            lengths += map(len, renderer.encode([renderer.show(view, "")]))
    except Exception as error:
        reason = " ".join(str(error).split()) or "nothing more is known"
        raise ValueError(
            f"task {rows[0]['task_id']!r}: its first prompt can't be written with the policy's chat template "
            f"({type(error).__name__}: {reason}); mend the environment's prompt, or take another model"
        ) from error
    finally:
        batch.close()
    if getattr(batch.prompt, "native", False):
        check_template(tokenizer, options, native=True)
    failed = [one.message for one in openings if isinstance(one, Failure)]
    if len(failed) == len(openings):
        raise ValueError(f"none of the first tasks opens; {rows[0]['task_id']!r}: {failed[0]}; mend reset()")
    if min(lengths) > options.max_prompt_length:
        raise ValueError(
            f"max_prompt_length={options.max_prompt_length}: the first prompts have {min(lengths)} tokens and more; "
            "raise it, or show less in a prompt"
        )


def _siblings(batch: ValidatedBatch, row: Row) -> Iterator[Finding]:
    name, slots = row["task_id"], range(batch.slots)
    rows = [seeded(batch, row, sibling=one) for one in slots]
    openings = batch.reset(slots, rows)
    opened = [one for one in openings if isinstance(one, Opening)]
    for failed in openings:
        if isinstance(failed, Failure):
            yield Finding(FAILED_RESET, f"task {name!r}: {failed.message}; mend reset()")
            return
    batch.step(slots, [(*opened[0].admissible, "")[0]] * len(slots))
    resets = (*openings, *batch.reset(slots, rows))  # the later ones show state that is left over from the step
    again = [replace(one, context=None) if isinstance(one, Opening) else one for one in resets]  # episodes change it
    for about, others in (("siblings", openings), ("reset", again)):
        try:
            if not batch.openings_may_differ:
                check_openings(others, [name] * len(others), batch.name, batch.sibling_advice)
        except SiblingsDiffer as error:
            what = "" if about == "siblings" else "after an episode the same task opens otherwise: "
            yield Finding(about, f"{what}{error}")
            return
    if not opened[0].task_text.strip() and not opened[0].later:
        told = "Opening.task_text is empty; skills are retrieved by it: say the request"
        yield Finding("task text", f"task {name!r}: {told}")


def seeded(batch: ValidatedBatch, row: Row, sibling: int = 0) -> dict[str, Any]:
    """Returns a row with its seeds, as `reset` gets it in training."""
    return given_to_reset(batch, row, episode_seeds(row["task_id"], 0, sibling))


PATIENCE = 2.0
"""Seconds for a server to take back the sessions of clients that were closed just before."""


def check_sessions(factory: OpenEnvEnvironment, episodes: int, row: Row, time_limit: float, instead: str) -> None:
    """Opens one session per episode that all processes play at once, resets it to the task ``row``, and closes it
    again. Raises `ValueError` if the server gives fewer; ``instead`` says how to play fewer episodes at once."""
    with closing(open_batch(factory, episodes, time_limit)) as batch:
        failures = _without_session(batch, range(episodes), {"seed": 0, "dynamics_seed": 0, **row})
    reason = cut(" ".join(failures[0].message.split()), 160) if failures else ""
    if len(failures) == episodes:
        raise ValueError(
            f"environment {batch.name}: reset() fails for every client ({reason}); start the server, or correct connect"
        )
    if failures:
        raise ValueError(
            f"environment {batch.name}: {episodes} episodes are played at once, and the server gave "
            f"{episodes - len(failures)} sessions ({reason}); raise its max_concurrent_envs, or {instead}"
        )


def _without_session(batch: ValidatedBatch, slots: Sequence[int], row: Row) -> list[Failure]:
    """Resets slots until all succeed or time is up, and returns the failures that are left."""
    end = time.monotonic() + PATIENCE
    while True:
        outcomes = batch.reset(slots, [row] * len(slots))
        failed = [(slot, one) for slot, one in zip(slots, outcomes, strict=True) if isinstance(one, Failure)]
        if not failed or time.monotonic() > end:
            return [one for _, one in failed]
        slots = [slot for slot, _ in failed]
        time.sleep(0.1)
