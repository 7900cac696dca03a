"""Trains a first policy with TRL's `SFTTrainer` on demonstrations, and evaluates it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from alignopsd_trl.checks.loading import check_policy, load_policy
from alignopsd_trl.commands.own_task.demonstrations import bank_of, encoded, play_options, skills_of
from alignopsd_trl.commands.own_task.options import FRESH, WarmStartConfig
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.commands.own_task.warm_start.precision import bfloat16_pays
from alignopsd_trl.commands.own_task.warm_start.tiny import tiny_model, tiny_tokenizer
from alignopsd_trl.common.errors import Kept
from alignopsd_trl.common.files import readable_as_others, replacing, whole_json, write_json
from alignopsd_trl.common.models import available, resolve_model
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.progress import Bar
from alignopsd_trl.common.statistics import bootstrap_mean
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.results.summary import EvaluationResult
from alignopsd_trl.rollout.episode import no_skills
from alignopsd_trl.runs.files import MODEL_FILES
from alignopsd_trl.runs.owned import begin, note, refuse
from alignopsd_trl.runs.sizes import write_sizes
from alignopsd_trl.turns import Trajectory

EFFORT_FILE = "warm_start.json"
PLAIN, SKILLED = "without the skill", "with it"
LOOKED_AT = 16  # training tasks that are played by a recipe's first policy
FEW = 20  # updates; a policy of fewer has hardly seen its demonstrations
BUSY = 0.5  # CPU seconds of a second, below which a process waits for others
PLAYS = 0.1  # least such share of a policy that is worth playing
HELPS, READ = 0.1, 0.5
"""A skill helps a player that wins so much more often with it. A policy that reads it comes with it so much of the way
from its own success without it to the player's success with it."""


@dataclass(frozen=True)
class Effort:
    """What a warm start took: updates, minutes by the clock, and the CPU seconds that its process had of them."""

    updates: int
    minutes: float
    cpu_seconds: float

    def told(self) -> str:
        return f"{self.updates} updates in {self.minutes:.1f} min and {self.cpu_seconds:.0f} CPU seconds"

    @property
    def hardly(self) -> str:
        """Why the policy is hardly trained; empty if it had updates enough."""
        if self.updates >= FEW:
            return ""
        busy = self.cpu_seconds < BUSY * 60 * self.minutes and not torch.cuda.is_available()
        why = "; other programs had most of the machine" if busy else ""
        return f"hardly trained, {self.told()}{why}: fewer than {FEW}; raise --minutes, or set --max_steps"


@dataclass(frozen=True)
class WarmStarted:
    """A first policy, what its training took, and which share of held-out turns is the player's: of its better view's
    responses, or of actions after the player's thoughts if that is more."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    effort: Effort
    agrees: float = math.nan  # not measured

    @property
    def updates(self) -> int:
        return self.effort.updates


def warm_start(
    rows: Sequence[Mapping[str, Any]],
    output: str | Path,
    config: WarmStartConfig,
    settings: Mapping[str, Any] | None = None,
) -> WarmStarted:
    """Trains a model on demonstrations and saves it with its tokenizer, both or neither.

    Args:
        rows: demonstrations in TRL's conversational prompt-completion form.
        settings: the recipe's settings, whose sizes are saved beside the weights; its ``history`` counts.

    Raises:
        KeyboardInterrupt, Terminated: after an interrupt; the best policy so far is saved, if there is one, and the
            error's ``left`` says so.
    """
    from alignopsd_trl.commands.own_task.warm_start.supervised import train

    refuse([one for pattern in MODEL_FILES for one in Path(output).glob(pattern)], "warm_start")
    model, tokenizer = _start(rows, config)
    settings = settings or {}
    if settings.get("history") == "conversation":
        rows = [one for row in rows for one in encoded(row, tokenizer, settings)]
    begun, used = time.monotonic(), time.process_time()
    with replacing(output) as started:
        trainer, updates = train(model, tokenizer, rows, started, config)
        effort = Effort(updates, (time.monotonic() - begun) / 60, time.process_time() - used)
        trained = trainer.accelerator.unwrap_model(trainer.model)
        trained = trained.merge_and_unload() if config.use_peft else trained
        trained.save_pretrained(started)
        tokenizer.save_pretrained(started)
        write_sizes(started, settings)
        write_json(started / EFFORT_FILE, asdict(effort))
        readable_as_others(started)
        written = [Path(output) / one.name for one in started.iterdir()]
        begin(written, "warm_start")
    note(written, "warm_start")
    if trainer.interrupted is not None:
        trainer.interrupted.add_note(Kept(f"{path_as_given(output)} holds the best so far, after {updates} updates"))
        raise trainer.interrupted
    if effort.hardly and config.max_steps < 0:
        print(f"look: {effort.hardly}", flush=True)
    last = trainer.budget.history[-1] if trainer.budget.history else None
    return WarmStarted(trained.eval(), tokenizer, effort, max(*last.views.values(), last.actions) if last else math.nan)


def effort_of(folder: str | Path) -> Effort | None:
    """Returns what the warm start of a policy's folder took; `None` where another made the policy."""
    content = whole_json(Path(folder) / EFFORT_FILE)
    return Effort(**content) if content else None


def _start(
    rows: Sequence[Mapping[str, Any]], config: WarmStartConfig
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model to train, and its tokenizer."""
    if config.fresh:
        if any(row.get("tools") for row in rows):
            raise ValueError("--model tiny has no chat template for tools, which the demonstrations call; name a model")
        texts = [str(one.get("content") or "") for row in rows for one in (*row["prompt"], *row["completion"])]
        tokenizer = tiny_tokenizer(texts)
        return tiny_model(tokenizer, config.layers, config.seed), tokenizer
    return load_policy(config.model, "auto" if torch.cuda.is_available() else "float32", trains=True)


def known_tokenizer(model: str) -> PreTrainedTokenizerBase | None:
    """Returns the tokenizer of a model; `None` for a fresh model, whose words are not known yet."""
    if model == FRESH:
        return None
    with available(model):
        return check_policy(model, saves=False) or AutoTokenizer.from_pretrained(resolve_model(model))


def report(
    task: Task,
    made: WarmStarted,
    panel: TaskPanel,
    rows: Sequence[Mapping[str, Any]],
    *,
    skill_bank: Any = None,
    encoder: str = "lexical",
    anyway: bool = False,
) -> str:
    """Plays tasks without the skill and, if there is one, with it, at the recipe's ``eval_temperature``. Returns the
    results, with a warning by the demonstrations ``rows``. ``anyway`` plays a useless policy too."""
    own = any(row.get("own") for row in rows)  # sampled: another response may be as good
    if made.agrees < PLAYS and not (anyway or own):
        return (
            f"look: nothing is played yet, since hardly any action is the player's ({made.agrees:.0%} of those held "
            f"out at best, after {made.updates} updates); if it does not win either, go on with alignopsd warm_start "
            f"{task.name} --model and this policy's folder"
        )
    played = play_views(task, made.model, made.tokenizer, panel, skill_bank, encoder)
    results = {name: result for name, (result, _) in played.items()}
    tables = [f"{name}:\n{result.table()}" for name, result in results.items()]
    return "\n".join(filter(None, [*tables, unread(results, rows)]))


def sample(task: Task) -> TaskPanel:
    """Returns training tasks, drawn by chance: rows in a fixed distance may be of one category."""
    rows = task.learnt()
    return TaskPanel.of(task.name, "train", random.Random(0).sample(rows, min(LOOKED_AT, len(rows))))


def play_views(
    task: Task, model: Any, tokenizer: Any, rows: TaskPanel, skill_bank: Any, encoder: str
) -> dict[str, tuple[EvaluationResult, list[Trajectory]]]:
    """Plays tasks without the skill and, if there is one, with it, at the recipe's ``eval_temperature``."""
    skills = skills_of(task, bank_of(task, skill_bank, encoder), tokenizer, task.limit("max_prompt_length"))
    views = {PLAIN: None} | ({} if skills is no_skills else {SKILLED: skills})
    options: dict[str, Any] = play_options(task.preset) | {"temperature": task.preset.get("eval_temperature", 0.4)}
    options |= {name: task.limit(name) for name in ("max_prompt_length", "max_completion_length")}
    results, width, turns = {}, model.config.get_text_config().hidden_size, task.declared.max_turns
    rounded = model.dtype == torch.float32 and bfloat16_pays(width)
    for name, one in views.items():
        with (
            Bar(len(rows), name, most_turns=turns) as progress,
            torch.autocast(model.device.type, torch.bfloat16, enabled=rounded),
        ):
            results[name] = evaluate(
                model, tokenizer, task.suite.factory, rows, skills=one, progress=progress, **options
            )
    return results


def unread(results: Mapping[str, EvaluationResult], rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a warning with a remedy if a skill that helped the player hardly helps the policy, by the 95 % interval
    over the played tasks; else an empty text."""
    plain, skilled = (_demonstrated(rows, view) for view in (PLAIN, SKILLED))
    if SKILLED not in results or skilled < plain + HELPS:
        return ""
    alone, read = (results[view].success.mean / 100 for view in (PLAIN, SKILLED))
    if math.isnan(read - alone):
        return ""
    pairs = zip(results[SKILLED].outcomes, results[PLAIN].outcomes, strict=True)
    _, most = bootstrap_mean([float(bool(with_it.won)) - float(bool(without.won)) for with_it, without in pairs])
    text = (
        f"look: the policy hardly reads the skill in its prompt, with which it won {read:.0%} and without {alone:.0%} "
        f"(its demonstrations {skilled:.0%} and {plain:.0%}): it would teach little as the teacher; let thoughts copy "
        "the skill's words before they decide, raise --skilled_share or --minutes, or train with --method grpo"
    )
    return text if most < READ * (skilled - alone) else ""


def _demonstrated(rows: Sequence[Mapping[str, Any]], view: str) -> float:
    """Returns the share of the demonstrated episodes with this view that were won; 0 if there are none."""
    opened = [row for row in rows if not row.get("turn") and bool(row.get("skilled")) is (view != PLAIN)]
    return sum(bool(row.get("won")) for row in opened) / max(1, len(opened))
