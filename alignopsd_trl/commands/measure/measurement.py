"""``alignopsd measure --model``: compares the turn credit of methods with Monte Carlo advantages of the same turns.

No trainer is involved; the environment must be deterministic. Episodes and rollouts stay in the output folder. An
interrupted measurement resumes from them, and one with other methods or ``--vary`` plays no rollouts again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from alignopsd_trl.commands.measure.kept import Cache
from alignopsd_trl.commands.measure.metrics import (
    CREDIT,
    MEANING,
    PIVOTAL,
    agreement,
    credit_of,
    measured_rows,
    turn_table,
    turns_of,
)
from alignopsd_trl.commands.measure.setup import MeasureSession, environment_preset, prepare
from alignopsd_trl.commands.measure.variants import CachedTeacher, turn_credit
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import plain, whole_json, write_json, write_text
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.progress import Bar, markdown
from alignopsd_trl.common.statistics import Interval
from alignopsd_trl.methods import Method, checked_credit, grpo
from alignopsd_trl.records import damage_named, write_records
from alignopsd_trl.rollout.monte_carlo.replays import ReplayError, play_groups, take_rollouts
from alignopsd_trl.rollout.monte_carlo.tree import Tree, outcome, turn_advantages
from alignopsd_trl.runs.sizes import choose_sizes
from alignopsd_trl.turns import Trajectory, TurnBatch


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])


def groups(
    session: MeasureSession, rows: Sequence[Mapping[str, Any]], cache: Cache, name: str, privileged: int = 0
) -> list[Trajectory]:
    """Plays a sibling group of each row, ``privileged`` siblings of it with the skill in the prompt, and keeps the
    episodes by their name. Raises as `playable`, before anything is kept."""
    asked = session.arguments

    def play() -> list[Trajectory]:
        torch.manual_seed(asked.seed)
        player = replace(session.player, privileged_siblings=privileged)
        found = play_groups(replace(session.replays, player=player), rows, session.config.num_generations, asked.quiet)
        with setup():
            playable(found, asked.value)
        return found

    return cache.take(name, play)


def rolled_out(session: MeasureSession, played: Sequence[Trajectory], cache: Cache) -> Tree:
    """Plays Monte Carlo rollouts from the states of playable episodes."""
    asked = session.arguments
    choices = {name: getattr(asked, name) for name in ("value", "everywhere", "enough", "quiet")}
    try:
        return take_rollouts(session.replays, played, asked.rollouts, **choices, kept=cache.take)
    except ReplayError as error:
        raise ReplayError(f"{error}; what was played is kept in {cache.folder}, remove that after a change") from error


def assign_credit(session: MeasureSession, tree: Tree) -> pd.DataFrame:
    """Returns the table of the turns with every variant's credit, which is assigned in batches of ``tasks_per_batch``
    sibling groups, the number of a training round."""
    asked, tables = session.arguments, []
    order = list(dict.fromkeys(one.task for one in tree.trajectories))
    with Bar(len(order), "credit", disable=asked.quiet) as progress:
        for first in range(0, len(order), asked.tasks_per_batch):
            chosen = order[first : first + asked.tasks_per_batch]
            episodes = [one for one in tree.trajectories if one.task in chosen]
            torch.manual_seed(asked.seed + first)
            tables.append(_credited(session, tree, sorted(episodes, key=lambda one: (one.task, one.rollout))))
            progress(len(chosen))
    return pd.concat(tables, ignore_index=True)


def _credited(session: MeasureSession, tree: Tree, episodes: Sequence[Trajectory]) -> pd.DataFrame:
    methods, step = session.variants, session.arguments.step
    batch = TurnBatch.of(episodes, session.tokenizer.pad_token_id, session.model.device)
    if any(method.needs_student_log_probs for method in methods.values()):
        batch = replace(batch, student_log_probs=session.score(batch))
    teacher: Any = CachedTeacher(session.teacher)
    credits = {label: checked_credit(method, batch, teacher, step) for label, method in methods.items()}
    sides = grpo.outcome(batch, session.config).advantage.cpu().numpy()
    table = turn_table(episodes, turn_advantages(tree, episodes), sides)
    return table.assign(**{CREDIT + label: turn_credit(one, batch).cpu().numpy() for label, one in credits.items()})


def playable(played: Sequence[Trajectory], value: str) -> list[Trajectory]:
    """Returns the episodes that can be measured. Raises `ValueError` if there are none, or their environment does not
    report the value."""
    kept = [one for one in played if not one.failed and one.turns]
    if not kept:
        why = next((one.message for one in played if one.message), "no prompt fits max_prompt_length")
        raise ValueError(f"every episode failed; the first: {why}")
    for one in kept:
        outcome(one, value)
    return kept


# The command


def measure(arguments: argparse.Namespace, shown: str) -> dict[str, Any]:
    """Measures, prints the page, writes the files and returns the content of the JSON file."""
    began = cpu_seconds()
    with setup():
        session = prepare(arguments)
        usual = environment_preset(arguments.environment)
        print(choose_sizes(arguments.model, arguments.set, usual)[1], file=sys.stderr, flush=True)
    with closing(session.player.environments):  # CPU seconds of its processes count once they have ended
        with setup():
            identity = session.identity()
            cache = Cache(arguments.output / "parts", identity)
            rows = session.draw_tasks(arguments.tasks)
        everyone = groups(session, rows, cache, "played")
        tree = rolled_out(session, playable(everyone, arguments.value), cache)
        table = assign_credit(session, tree)
    known = measured_rows([table])
    turns, credit = turns_of(known), credit_of(known)
    facts = {"command": shown, **_facts(everyone, tree, table, known), **turns.quality}
    facts["cpu_seconds"] = cpu_seconds() - began
    reference = "align_opsd" if "align_opsd" in credit else next(iter(credit))
    figures = agreement(turns, credit, reference, arguments.seed) if len(known) else {}
    result = plain(
        facts
        | {"figures": figures, "identity": identity}
        | {"encoder": arguments.encoder, "step": arguments.step, "environment": dict(session.suite.description)}
        | {"settings": {label: _settings(method) for label, method in session.variants.items()}}
    )
    folder, text = arguments.output, page(facts, figures)
    write_json(folder / "fidelity.json", result)
    write_records(folder / "turns.parquet", table.to_dict("records"))
    write_text(folder / "report.md", text)
    print(text)
    print(f"figures, turns and page are in {path_as_given(folder)}")
    return result


def _facts(everyone: Sequence[Trajectory], tree: Tree, table: pd.DataFrame, known: pd.DataFrame) -> dict[str, Any]:
    played = tree.trajectories
    won = [episode.won for episode in played if episode.won is not None]
    return {
        "rollouts": len(played),
        "failed_rollouts": len(everyone) - len(played),
        "first_failure": next((episode.message for episode in everyone if episode.failed), None),
        "tasks": len({episode.task for episode in played}),
        "success": float(np.mean(won)) if len(won) == len(played) else None,
        "reward": float(np.mean([episode.reward for episode in played])),
        "turns": len(table),
        "measured_turns": len(known),
        "measured_tasks": known.task.nunique(),
        "states": len(tree.states),
        "walks": tree.taken,
        "walked_turns": sum(tree.rollout_turns),
        "median_walks": float(known.walks.median()) if len(known) else 0.0,
    }


_OF_CREDIT = ("rectify", "alpha_max", "similarity_threshold", "allocation", "credit_temperature", "credit_spread")


def _settings(method: Method) -> dict[str, Any]:
    return {name: getattr(method.config, name) for name in ("method", "method_options", *_OF_CREDIT)}


SHOWN = ("r_within", "r_praised", "r_blamed", "spearman", "cosine", "sign_agreement", "lift")


def page(facts: Mapping[str, Any], figures: Mapping[str, Mapping[str, Interval]]) -> str:
    lines = ["# Credit fidelity", "", facts["command"], "", _summary(facts), ""]
    if facts.get("failed_rollouts"):
        first = facts["first_failure"] or "no prompt fits max_prompt_length"
        lines += [f"Left out: {facts['failed_rollouts']} rollouts that failed; the first: {first}", ""]
    if not figures:
        return "\n".join([*lines, "No group differs in its rewards: there is no credit to measure.", ""])
    lines += [*figure_lines(figures), "", *(f"{name}: {MEANING[name]}." for name in SHOWN)]
    lines += ["'-' where credit is the same on all turns of a trajectory. Intervals: 95 %, resampled tasks.", ""]
    return "\n".join(lines)


def figure_lines(figures: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """Returns a table with one row per variant (Markdown)."""
    return markdown(["variant", *SHOWN], ([label, *(row[name] for name in SHOWN)] for label, row in figures.items()))


def _summary(facts: Mapping[str, Any]) -> str:
    won = f"mean reward {facts['reward']:.3g}" if facts["success"] is None else f"{facts['success']:.0%} won"
    return (
        f"{facts['rollouts']} rollouts of {facts['tasks']} tasks, {won}; {facts['turns']} turns, "
        f"{facts['measured_turns']} of them in the {facts['measured_tasks']} groups that differ. {facts['walks']} "
        f"Monte Carlo rollouts ({facts['walked_turns']} turns), median {facts['median_walks']:.0f} through a "
        f"turn's state. Reliability of A_MC {_number(facts['reliability'])}; {_number(facts['pivotal'])} of the turns "
        f"are pivotal (|A_MC| above {PIVOTAL:g} standard errors). {facts['cpu_seconds']:.0f} CPU seconds."
    )


def _number(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{value:.2f}"


# Several measurements


def pool(folders: Sequence[Path], output: Path | None = None) -> dict[str, Any]:
    """Prints the figures of all measured turns together and writes them to ``pooled.json`` in ``output``. Raises
    `ValueError` if a folder holds no finished measurement, or their variants differ."""
    table = pooled(folders)
    turns, credit = turns_of(table), credit_of(table)
    figures = agreement(turns, credit, "align_opsd" if "align_opsd" in credit else next(iter(credit)))
    commands = [str((whole_json(folder / "fidelity.json") or {}).get("command")).strip() for folder in folders]
    counts = {"measured_tasks": turns.tasks, "measured_turns": len(table)}
    print(f"{len(table)} measured turns of {turns.tasks} groups that differ", *figure_lines(figures), sep="\n")
    found = plain({"commands": commands, **counts, "figures": figures})
    if output is not None:
        write_json(output / "pooled.json", found)
    return found


def pooled(folders: Sequence[Path]) -> pd.DataFrame:
    tables = []
    for folder in folders:
        if not all((folder / name).is_file() for name in ("fidelity.json", "turns.parquet")):
            raise ValueError(f"--pool {folder}: no finished measurement there; name folders that --output was")
        with damage_named(folder / "turns.parquet"):
            tables.append(pd.read_parquet(folder / "turns.parquet"))
        if differ := sorted(credit_of(tables[0]).keys() ^ credit_of(tables[-1])):
            raise ValueError(
                f"--pool {folder}: only this folder or the first one has {', '.join(differ)}; measure both with the "
                "same --methods and --vary"
            )
    return measured_rows(tables)
