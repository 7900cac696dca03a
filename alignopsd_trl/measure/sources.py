"""What privileged texts know: the privileged view of played turns against their Monte Carlo advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from alignopsd_trl.environments.base import Projection
from alignopsd_trl.measure.mc_rollouts import play_again
from alignopsd_trl.measure.measurement import Cache, Measurement
from alignopsd_trl.measure.metrics import agreement, task_mean
from alignopsd_trl.measure.report import markdown
from alignopsd_trl.measure.setup import Session, source_of
from alignopsd_trl.measure.table import measured_rows, turns_of
from alignopsd_trl.measure.tree import outcome
from alignopsd_trl.privileged import TurnTexts
from alignopsd_trl.turns import Trajectory, Turn, TurnBatch

AGREEMENT = ("cosine", "spearman", "sign_agreement")


def measure_sources(session: Session, one: Measurement, cache: Cache) -> dict[str, pd.DataFrame]:
    """Measures each source that the arguments name: the turns' table with ``text``, ``gap`` and ``gain``.

    ``gap`` is the log-prob of the response under the privileged view less the policy's. ``gain`` is the outcome of an
    episode that takes the view's own action at the turn, and goes on without it, less the value of the turn's state.
    """
    return {name: _measured(session, one, name, cache) for name in session.arguments.privileged}


def figures_of(tables: Sequence[pd.DataFrame], seed: int = 0) -> dict[str, Any]:
    """Computes a source's figures from its tables of different tasks: the share of turns with a text and, over these
    turns, the lift of the view and the agreement of its gap with A_MC."""
    known = measured_rows(tables)
    known, everywhere = known[known.text], pd.concat([table.text for table in tables])
    found = {"turns": len(everywhere), "share": float(everywhere.mean()), "measured": len(known)}
    if not len(known):
        return found
    turns, gain = turns_of(known), known.gain.to_numpy()
    own = agreement(turns, {"gap": known.gap.to_numpy()}, "gap", seed)["gap"]
    lift = task_mean(turns, np.nan_to_num(gain), np.isfinite(gain).astype(float), seed)
    return found | {"lift": lift} | {name: own[name] for name in AGREEMENT}


def source_lines(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the table of the sources, largest lift first, then a line where none helps and one for each that misleads
    (Markdown)."""
    if not figures:
        return []
    columns = ("lift", *AGREEMENT)
    order = sorted(figures.items(), key=lambda item: -item[1]["lift"].value if "lift" in item[1] else np.inf)
    rows = [
        [name, f"{one['share']:.0%} of {one['turns']}", one["measured"], *(one.get(column, "-") for column in columns)]
        for name, one in order
    ]
    lines = markdown(["privileged", "turns with a text", "measured", *columns], rows)
    lines += ["", "Lift: of the outcome where the view acts once; the other columns: its gap against A_MC.", ""]
    if not any("lift" in one and one["lift"].low > 0 for one in figures.values()):
        lines += ["No source is told from none: no lift's interval lies above 0.", ""]
    for name, one in order:
        if "lift" in one and one["lift"].high < 0:
            lines += [f"{name} misleads: its lift's interval lies below 0; don't train with it.", ""]
    return lines


def _measured(session: Session, one: Measurement, name: str, cache: Cache) -> pd.DataFrame:
    episodes = sorted(one.tree.trajectories, key=lambda episode: (episode.task, episode.rollout))
    texts = TurnTexts(source_of(name), session.tokenizer, session.config.skill_budget)
    texts.give(episodes, session.player.renderer, session.teacher.respond)
    batch = TurnBatch.of(episodes, session.tokenizer.pad_token_id, session.model.device)
    own, every = session.score(batch), torch.arange(len(batch), device=batch.task.device)
    views = session.teacher.score(replace(batch, student_log_probs=own), every, every)
    gap = ((views - own) * batch.policy_mask).double().sum(1).cpu().numpy()
    keys = ["task", "rollout", "turn"]
    turns = [(episode.task, episode.rollout, turn.number) for episode in episodes for turn in episode.turns]
    table = pd.DataFrame(turns, columns=keys).merge(one.table, on=keys, how="left")
    table = table.assign(text=[bool(turn.privileged_text) for turn in batch.turns], gap=gap, gain=np.nan)
    wanted = np.flatnonzero(table.text & table.a_mc.notna() & table.a_mc_error.notna())
    label = "".join(letter if letter.isalnum() else "_" for letter in name)
    ended = cache.take(f"view_{label}", lambda: _play_on(session, episodes, wanted, one.tree.value))
    table.loc[wanted, "gain"] = np.array(ended) - table.value_before[wanted]
    return table


def _play_on(session: Session, episodes: Sequence[Trajectory], wanted: np.ndarray, value: str) -> list[float]:
    """Lets the view act once at each of the wanted turns and plays on without it. Returns the outcomes, NaN where the
    environment failed."""
    torch.manual_seed(session.arguments.seed)
    places = [(episode, number) for episode in episodes for number in range(len(episode.turns))]
    origins = [places[row] for row in wanted]
    actions = _acted(session, [one.turns[number] for one, number in origins])
    pairs = zip(origins, actions, strict=True)
    paths = [[*(turn.action for turn in one.turns[:number]), action] for (one, number), action in pairs]
    player, slots = replace(session.player, privileged=False, until_lost=value == "success"), session.arguments.slots
    again: list[Trajectory] = []
    for part in (slice(first, first + slots) for first in range(0, len(paths), slots)):
        draws = [f"view {number}" for number in range(len(paths))[part]]
        again += play_again(player, [one for one, _ in origins[part]], paths[part], draws)
    return [float("nan") if one.failed else outcome(one, value) for one in again]


def _acted(session: Session, turns: Sequence[Turn]) -> list[str]:
    """Samples the view's own action at each turn, parsed as in play."""
    decode: Any = session.tokenizer.decode  # its annotation gives a list too
    responses = session.teacher.sampler.respond([turn.privileged_ids for turn in turns]).ids if turns else []
    actions = []
    for turn, ids in zip(turns, responses, strict=True):
        view, text = turn.shown.view, decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        reading = session.teacher.reader.read(turn.privileged_ids, ids, text, getattr(view.context, "tools", ()))
        found = session.player.environments.project(reading.text, view.admissible)
        parsed = found.action if isinstance(found, Projection) else ""
        actions.append(parsed if reading.action is None else reading.action)
    return actions
