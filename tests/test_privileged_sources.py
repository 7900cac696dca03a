"""Privileged texts against Monte Carlo advantages, as ``alignopsd measure --privileged`` measures them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from alignopsd_trl.measure import sources
from alignopsd_trl.measure.commands import run_measure
from alignopsd_trl.measure.sources import figures_of, source_lines

SHOP = ["--model", "tiny", "--environment", "webshop_tiny", "--methods", "grpo", "--tasks", "3", "--rollouts", "2"]
SHOP += ["--set", "num_generations=4"]


def measured(folder: Path, *names: str) -> dict[str, Any]:
    found = run_measure([*SHOP, "--quiet", "--output", str(folder), "--privileged", *names])
    assert json.loads((folder / "fidelity.json").read_text())["privileged"] == found["privileged"]
    return found["privileged"]


def test_sources_are_measured_on_the_turns_that_they_have_a_text_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that repeats the policy's last action gains exactly the outcome less the state's value."""
    tables: dict[str, pd.DataFrame] = {}
    inner = sources.figures_of
    monkeypatch.setattr(sources, "_acted", lambda session, turns: [turn.action for turn in turns])
    monkeypatch.setattr(
        "alignopsd_trl.measure.fidelity.figures_of",
        lambda found, seed: inner([tables.setdefault(str(len(tables)), one) for one in found], seed),
    )
    found = measured(tmp_path, "sibling_action", "next_observation", "feedback")
    assert list(found) == ["sibling_action", "next_observation", "feedback"]
    assert 0 < found["sibling_action"]["share"] < found["next_observation"]["share"] <= 1
    assert found["feedback"]["share"] == 0 and "lift" not in found["feedback"]
    table = tables["1"]
    last = table[
        table.text & table.a_mc.notna() & (table.turn == table.groupby(["task", "rollout"]).turn.transform("max"))
    ]
    assert len(last)
    assert (last.gain + last.value_before).to_numpy() == pytest.approx(last.won.astype(float).to_numpy())
    assert not table[~table.text].gap.any() and table[table.text].gap.any()
    assert measured(tmp_path, "sibling_action")["sibling_action"] == found["sibling_action"]  # from its files
    with pytest.raises(ValueError, match="privileged='feed_back' is unknown"):
        measured(tmp_path, "feed_back")


def test_figures_and_page_tell_whether_a_source_helps() -> None:
    draw = np.random.default_rng(0)
    rows = [
        {"task": f"{task}", "rollout": f"{rollout}", "turn": turn, "outcome_advantage": 1.0 - 2 * (rollout % 2)}
        for task in range(12)
        for rollout in range(4)
        for turn in range(3)
    ]
    table = pd.DataFrame(rows)
    advantage = draw.normal(size=len(table))
    table = table.assign(a_mc=advantage, a_mc_half_0=advantage, a_mc_half_1=advantage, a_mc_error=0.1)
    good = table.assign(text=table.turn < 2, gap=2 * advantage, gain=0.5 + 0.1 * draw.normal(size=len(table)))
    bad = table.assign(text=True, gap=draw.normal(size=len(table)), gain=draw.normal(size=len(table)))
    figures = {"bad": figures_of([bad]), "good": figures_of([good])}
    assert figures["good"]["share"] == pytest.approx(2 / 3) and figures["good"]["measured"] == 96
    assert figures["good"]["lift"].value == pytest.approx(0.5, abs=0.05) and figures["good"]["lift"].low > 0
    assert figures["good"]["cosine"].value == pytest.approx(1.0) and figures["bad"]["cosine"].high < 0.5
    lines = source_lines(figures)
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| good", "| bad"]
    assert not any("none is told" in line or "told from none" in line for line in lines)
    assert any("told from none" in line for line in source_lines({"bad": figures["bad"]}))
    assert not any("misleads" in line for line in lines)
    figures["worse"] = figures_of([good.assign(gain=-good.gain)])
    assert any(line.startswith("worse misleads: its lift") for line in source_lines(figures))
