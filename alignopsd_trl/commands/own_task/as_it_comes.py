"""Asks a model, before it is trained, whether it plays a task and reads the privileged text; a warm start follows only
where it is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from alignopsd_trl.commands.own_task.first_policy import first_policy, words_of
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.options import as_mapping
from alignopsd_trl.common.progress import quoted
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.common.statistics import bootstrap_mean
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from alignopsd_trl.commands.launch.arguments import RecipeArguments

FORM, CUT, UNREAD, UNSURE, READS, WEAK, PLAYS = "form", "cut", "unread", "unsure", "reads", "weak", "plays"
INVALID = 0.5  # share of responses without an action from which a model can't play the form
HELPS = 0.1  # least lift of a text that helps
WON = 0.9  # success without the text from which there is little to learn
LOW = 0.5  # a teacher's success below which reward leads further (research/what_teaches.md)
LOST = 3  # lost episodes that are shown
AS_IT_IS = ("-h", "--help", "--plan", "--model", "--model_name_or_path", "--resume_from_checkpoint")
"""Flags of a command line with which nothing is asked: nothing is trained, or another policy, or a run goes on."""


@dataclass(frozen=True)
class Verdict:
    """What a model's play without the text and with it says.

    Args:
        kind: one of the names above.
        text: what the screen says.
        settings: what the run is trained with in place of the recipe's settings.
    """

    kind: str
    text: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def as_it_comes(
    task: str,
    preset: Mapping[str, Any],
    policy: str | Path,
    argv: Sequence[str] | None = None,
    *,
    config: WarmStartConfig,
    **demonstrated: Any,
) -> dict[str, Any]:
    """Lets the model of a recipe play 16 training tasks, says what follows, and returns the settings to train with.
    Makes a warm start in the folder ``policy`` if the model can't play the form. A run whose teacher's text does not
    help ends here, unless the command line names a ``--method``.

    Args:
        task: as in `alignopsd check TASK`.
        preset: the recipe's settings.
        argv: the recipe's command line; by default that of this process.
        config: settings of the warm start.
        demonstrated: options of [`first_policy`] for the warm start's demonstrations.
    """
    words, given = words_of(argv)
    if given & {*AS_IT_IS} or (Path(policy) / "config.json").is_file():
        return {**preset, **(_resumed(task, preset, words) if "--resume_from_checkpoint" in given else {})}
    with reported(task, quietly=argv is None, resumes=None), setup():
        found = _asked(task, preset, words)
        if int(os.environ.get("RANK", "0")) == 0:
            print(found.text, flush=True)
        if found.kind == UNREAD and "--method" not in given or found.kind == CUT:
            raise ValueError(f"{task}: this run would teach nothing; what to change stands above")
    if found.kind == FORM:
        first_policy(
            task, policy, argv, config=config, preset={**preset, "model_name_or_path": str(policy)}, **demonstrated
        )
        return {**preset, "model_name_or_path": str(policy)}
    return {**preset, **({} if "--method" in given else found.settings)}


def _resumed(name: str, preset: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Returns the settings that the first session of a run chose."""
    from alignopsd_trl.commands.launch.arguments import parse
    from alignopsd_trl.runs.state import read_run

    run = read_run(Path(parse(name, words, preset)[1].output_dir))
    return {"method": run["configuration"]["method"]} if run else {}


def _asked(name: str, preset: Mapping[str, Any], words: Sequence[str]) -> Verdict:
    """Asks on the first process, and returns its verdict on all; all raise the same `ValueError`."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list, gather_object

    from alignopsd_trl.commands.launch.arguments import parse
    from alignopsd_trl.commands.launch.machine import check_launch, launched
    from alignopsd_trl.common.process_group import together

    recipe, args, loads = parse(name, words, preset)  # a mistake in the command line shows before minutes of play
    check_launch(launched(), args)
    first = args.device is not None and PartialState().is_main_process  # the device joins the processes
    found = together(
        lambda: _played(name, preset, recipe, args, loads) if first else None,
        ValueError,
        lambda problem: gather_object([problem]),
    )
    return broadcast_object_list([found])[0]


def _played(name: str, preset: Mapping[str, Any], recipe: RecipeArguments, args: Any, loads: Any) -> Verdict:
    import torch
    from trl import get_quantization_config

    from alignopsd_trl.checks.loading import check_quantised, load_policy
    from alignopsd_trl.commands.launch.model_files import thinking
    from alignopsd_trl.commands.own_task.task import find_task
    from alignopsd_trl.commands.own_task.warm_start.warm_start import PLAIN, SKILLED, play_views, sample
    from alignopsd_trl.methods import get_method

    teaches = get_method(args.method)(args).needs_teacher
    task = find_task(name, as_mapping(preset.get("environment_options")))
    task = replace(task, preset={**preset, "held_out": recipe.held_out})
    rows, device = sample(task), "cuda" if torch.cuda.is_available() and not args.use_cpu else "cpu"
    print(f"{preset['model_name_or_path']} as it comes plays {len(rows)} training tasks on the {device}:", flush=True)
    few, dtype = get_quantization_config(loads), "float32" if device == "cpu" else "bfloat16"
    check_quantised(few, args, loads.use_peft)
    model, tokenizer = load_policy(preset["model_name_or_path"], dtype, device, quantization=few)
    views = play_views(task, model, tokenizer, rows, recipe.skill_bank, recipe.encoder)
    played = {view: episodes for view, (_, episodes) in views.items()}
    off = as_mapping(args.chat_template_kwargs).get("enable_thinking") is False
    thinks = not off and thinking(preset["model_name_or_path"], model.config.model_type) != "no"
    del model
    torch.cuda.empty_cache()
    most = task.limit("max_completion_length")
    return verdict(played[PLAIN], played.get(SKILLED), teaches=teaches, thinks=thinks, most=most)


def verdict(
    plain: Sequence[Trajectory],
    skilled: Sequence[Trajectory] | None,
    *,
    teaches: bool = True,
    thinks: bool = False,
    most: int = 0,
) -> Verdict:
    """Judges the episodes of the same tasks without the text and with it; `None` where a task has no text.

    Args:
        teaches: whether the run's method has a teacher, which reads the text.
        thinks: whether the model thinks before it answers, so that a short limit cuts its answers off.
        most: tokens of a response at most, for what is said.
    """
    turns = [turn for one in (*plain, *(skilled or ())) for turn in one.turns]
    bad = [turn for turn in turns if not turn.action_valid]
    if len(bad) >= INVALID * len(turns):
        if thinks and 2 * sum(turn.truncated for turn in bad) > len(bad):
            told = f"its responses are cut at max_completion_length={most}: raise it"
            return Verdict(CUT, f"{told}. {quoted(bad[0].response_text)}")
        told = f"it can't play the form: {len(bad)} of {len(turns)} responses hold no action that is read, such as"
        return Verdict(FORM, f"{told} {quoted(bad[0].response_text)}. A warm start teaches it the form first")
    alone = fmean(map(_worth, plain))
    if skilled is None:
        return Verdict(PLAYS, f"it plays: {alone:.0%} won; the task has no privileged text to read")
    differences = [_worth(b) - _worth(a) for a, b in zip(plain, skilled, strict=True)]
    read, lift = fmean(map(_worth, skilled)), fmean(differences)
    low, high = bootstrap_mean(differences)
    told = f"{read:.0%} won with the text and {alone:.0%} without it ({lift:+.0%} [{low:+.0%}, {high:+.0%}] by task)"
    if alone >= WON:
        return Verdict(PLAYS, f"it plays, and wins nearly all already: {told}; there is little left to learn")
    if lift >= HELPS and read < LOW and teaches:
        reward = (
            "reward leads further than such a teacher, so it trains by GRPO (--method align_opsd follows it anyway)"
        )
        return Verdict(WEAK, f"it reads: {told}. {reward}", {"method": "grpo"})
    if lift >= HELPS:
        return Verdict(READS, f"it reads: {told}. It trains as it comes")
    if high >= HELPS or not teaches:
        more = "alignopsd measure tells more" if teaches else "this method does not read the text"
        return Verdict(UNSURE, f"it plays: {told}; {len(differences)} tasks do not tell whether the text helps; {more}")
    lost = "\n".join(_lost(one) for one in [one for one in skilled if _worth(one) < 1][:LOST])
    remedy = "write a text that tells what decides, or train by reward alone (--method grpo)"
    return Verdict(UNREAD, f"it plays, and the text does not help: {told}. So {remedy}. It lost with the text:\n{lost}")


def _worth(episode: Trajectory) -> float:
    """An episode's outcome: whether it was won, or where nobody knows its score."""
    return float(episode.score) if episode.won is None else float(episode.won)


def _lost(episode: Trajectory) -> str:
    said = quoted(episode.turns[-1].response_text, 80) if episode.turns else "nothing"
    return f"  {episode.row['task_id']}: it read {quoted(episode.skill_text)} and ended with {said}"
