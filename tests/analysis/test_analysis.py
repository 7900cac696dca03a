"""The analyses' numbers by hand, their files, their errors and their commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fakes.own_task import fails
from fakes.recorded import RUNS

pytest.importorskip("matplotlib", reason='pip install "alignopsd-trl[studies]"')

from alignopsd_trl.commands import analysis
from alignopsd_trl.commands.analysis.__main__ import main
from alignopsd_trl.commands.analysis.drawing import smoothed
from alignopsd_trl.commands.analysis.temporal_mismatch import Operation, matched_turns, operations
from alignopsd_trl.commands.analysis.training_dynamics import by_step
from alignopsd_trl.common.statistics import clustered_ratio

LIST = "'Back to Search' [SEP] 'Page 1 (Total results: 2)' [SEP] '1111111111'"
ITEM = "'Back to Search' [SEP] '< Prev' [SEP] 'red' [SEP] 'Buy Now'"


def episode(task: str, rollout: str, actions: list[str], **columns: Any) -> list[dict[str, Any]]:
    base = {"step": 0, "task": task, "task_id": task, "rollout": rollout, "category": "shoes", "task_text": "a shoe"}
    base |= {"won": False, "score": 0.5, "reward": 0.0, "action_valid": True, "observation": "", "thinking": "so"}
    each = [
        {name: value[at] for name, value in columns.items() if isinstance(value, list)} for at in range(len(actions))
    ]
    whole = {name: value for name, value in columns.items() if not isinstance(value, list)}
    return [
        base | whole | one | {"turn": at, "action": action}
        for at, (action, one) in enumerate(zip(actions, each, strict=True))
    ]


def frame(*episodes: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame([turn for one in episodes for turn in one])


# Operations


def test_operations_of_a_shop() -> None:
    actions = [
        "search[red shoe]",
        "click[1111111111]",
        "click[Red]",
        "click[Description]",
        "click[< Prev]",
        "click[buy now]",
    ]
    seen = [LIST, ITEM, ITEM, "'< Prev' [SEP] 'A shoe.'", ITEM, "Thank you"]
    product = "1111111111"
    assert operations(actions, seen, [True] * 6) == [
        Operation("search"),
        Operation("product", (product,)),
        Operation("option", (product, "red")),
        Operation("tab", (product, "description")),
        Operation("navigation"),
        Operation("purchase", (product,)),
    ]
    left = operations(
        ["click[1111111111]", "click[< prev]", "click[red]", "nonsense"], [ITEM, LIST, "", ""], [True] * 3 + [False]
    )
    assert left[2:] == [Operation("option", None), None], (
        "the page of the product is closed; an invalid action is nothing"
    )


def test_operations_of_other_worlds() -> None:
    actions = ["go to shelf 1", "take apple 1 from shelf 1", "look", "<search>Who  won?</search>", ""]
    assert operations(actions, [""] * 5, [True] * 5) == [
        Operation("go to", ("shelf 1",)),
        Operation("take", ("apple 1 from shelf 1",)),
        Operation("look"),
        Operation("search", ("who won?",)),
        None,
    ]


# Temporal mismatch


def kinds(text: str) -> list[Operation]:
    return [Operation(letter, (letter,)) for letter in text]


def test_matching_is_order_preserving_largest_and_nearest() -> None:
    assert matched_turns(kinds("abc"), kinds("xabc")) == [(0, 1), (1, 2), (2, 3)]
    assert len(matched_turns(kinds("ab"), kinds("ba"))) == 1, "order is kept"
    assert matched_turns(kinds("a"), kinds("aa")) == [(0, 0)], "of equal matchings the nearest"
    assert matched_turns(kinds("xa"), kinds("aa")) == [(1, 1)]
    assert matched_turns([None, Operation("search")], [None, Operation("search")]) == [], "on nothing is no match"


def test_temporal_by_hand() -> None:
    turns = frame(
        episode("t", "0", ["take a", "open b", "take c", "look"]),
        episode("t", "1", ["look", "take a", "take c", "open b"]),
    )
    found = analysis.temporal(turns)
    numbers = found.numbers["self-self"]
    # turns 0, 1 and 3 differ in kind (take/look, open/take, look/open), turn 2 does not
    assert numbers["positions with two parseable actions"] == 4
    assert numbers["different kinds at the same turn"][0] == pytest.approx(3 / 4)
    # a (0, 1) and c (2, 2) go together; a and b would need (0, 1), (1, 3): as many pairs, further apart
    assert found.tables["displacement"][["left_turn", "right_turn"]].to_numpy().tolist() == [[0, 1], [2, 2]]
    assert numbers["entity-action coverage"] == 2 / 4, "over all turns that parsed, also those on no entity"
    assert numbers["matched actions at different turns"][0] == pytest.approx(0.5)
    assert numbers["absolute displacement, median (turns)"] == 0.5
    taught = [episode(task, "2", ["take a"], privileged=True) for task in ("t", "u")]
    both = analysis.temporal(pd.concat([turns, frame(*taught)]))
    assert both.numbers["self-privileged"]["rollout pairs"] == 2
    assert both.numbers["self-self"] == numbers, "the teacher's rollouts are no siblings of the policy's own"
    with pytest.raises(ValueError, match="no self-privileged pairs"):
        analysis.temporal(pd.concat([turns, frame(taught[1])]))


def test_off_turn_weight_by_hand() -> None:
    def credit(row: int, sources: list[list[int]], weights: list[list[float]]) -> dict[str, Any]:
        return {"credit_row": [row, row + 1], "credit_sources": sources, "credit_source_weights": weights}

    turns = frame(
        episode("t", "0", ["take a", "take b"], **credit(0, [[2, 3], []], [[0.75, 0.25], []])),
        episode("t", "1", ["take a", "take b"], **credit(2, [[], [0]], [[], [1.0]])),
    )
    # turn 0 takes 0.25 from turn 1, turn 1 of the other takes 1.0 from turn 0: 1.25 of 2.0
    assert analysis.temporal(turns).numbers["off-turn share of matching weight"][0] == pytest.approx(0.625)


# Thinking audit


def plain_encoder(texts: list[str]) -> np.ndarray:
    """Cosines that are known: text 'a' on an axis, 'b' on another, 'ab' between."""
    return np.array([[float("a" in text), float("b" in text)] for text in texts])


def thinking_frame(recorded: float = 1.0) -> pd.DataFrame:
    def thoughts(row: int, own: list[str], teacher: list[str], sources: list[list[int]]) -> dict[str, Any]:
        return {
            "thinking": own,
            "credit_teacher_thinking": teacher,
            "credit_row": [row + at for at in range(len(own))],
            "credit_sources": sources,
            "credit_source_similarities": [[recorded] * len(one) for one in sources],
            "credit_source_weights": [[1.0] * len(one) for one in sources],
        }

    return frame(
        episode("t", "0", ["x", "y"], **thoughts(0, ["a", "b"], ["a", "ab"], [[2], []])),
        episode("t", "1", ["x"], **thoughts(2, ["ab"], ["a"], [[]])),
    )


def test_thinking_by_hand() -> None:
    found = analysis.thinking(thinking_frame(), encoder=plain_encoder, threshold=0.8)
    near = 0.5**0.5
    pairs = found.tables["pairs"].set_index("set")
    # diagonal: a-a 1, ab-b near, a-ab near
    assert pairs.loc["same state", "count"] == 3
    assert pairs.loc["same state", "mean"] == pytest.approx((1 + 2 * near) / 3)
    # cross-rollout, source -> target: a->ab near, ab->ab 1, a->a 1, a->b 0
    assert pairs.loc["all cross-rollout", "count"] == 4
    assert pairs.loc["all cross-rollout", "mean"] == pytest.approx((near + 2) / 4)
    assert pairs.loc["all cross-rollout", "std"] == pytest.approx(np.std([near, 1, 1, 0]))
    assert pairs.loc["above threshold", "count"] == 2 and pairs.loc["used", "count"] == 1
    assert found.numbers["matching"]["share with a source"] == pytest.approx(1 / 3)
    assert found.numbers["matching"]["share at another turn"] == 0.0
    coverage = found.tables["coverage"].set_index("gamma_H").share
    # best sources: turn 0 has 1, turn 1 has 0, the sibling's turn has 1
    assert coverage[0.5] == pytest.approx(2 / 3) and coverage[1.0] == pytest.approx(2 / 3) and coverage[0.0] == 1.0


def test_another_encoder_than_the_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="up to 0.50 from those that the frame recorded"):
        analysis.thinking(thinking_frame(recorded=0.5), encoder=plain_encoder)
    with pytest.raises(ValueError, match="--encoder lexical"):
        analysis.thinking(thinking_frame())


# Spans


def spanned() -> pd.DataFrame:
    def cut(span: list[int], why: list[str]) -> dict[str, Any]:
        return {"credit_span": span, "credit_cut": why}

    return frame(
        episode("t", "0", ["a"] * 5, **cut([0, 0, 1, 1, 1], ["", "", "threshold", "", ""])),
        episode("t", "1", ["a"] * 4, **cut([0, 0, 0, 0], [""] * 4), category="hats"),
    )


def test_spans_by_hand() -> None:
    found = analysis.spans(spanned())
    numbers = found.numbers["the frame"]
    assert numbers["spans"] == 3 and numbers["mean length (turns)"] == 3.0
    assert numbers["mean length by category"] == {"hats": 4.0, "shoes": 2.5}
    assert numbers["spans by why they begin"] == {"first of a rollout": 2, "shift": 1}


# Dynamics, mechanism


def test_dynamics_by_hand() -> None:
    credit = {"credit_tokens": [10, 30], "credit_identity_gap": [0.4, np.nan], "credit_rectified_gap": [0.2, np.nan]}
    credit |= {"credit_weight": [0.5, 1.5], "credit_span": [0, 1], "credit_sources": [[1], []]}
    table = by_step(frame(episode("t", "0", ["a", "b"], won=True, **credit), episode("t", "1", ["a", "b"], **credit)))
    row = table.iloc[0]
    assert (row.success, row.score, row.turns, row.turns_a_span) == (50.0, 50.0, 2.0, 1.0)
    assert row.identity_gap == pytest.approx(0.4) and row.correction == pytest.approx(-0.2), "scored turns alone"
    assert row.weight_std == pytest.approx(0.5) and row.matched == 50.0
    assert smoothed([1.0, 5.0, np.nan], span=3).tolist() == [1.0, 3.0, 3.0]


def test_dynamics_has_intervals_over_tasks() -> None:
    won = [True, True, True, False, False, False]
    rows = [episode(f"t{at}", "0", ["a", "b"][: 1 + one], won=one) for at, one in enumerate(won)]
    row = by_step(frame(*rows)).iloc[0]
    assert (row.success, row.turns) == (50.0, 1.5)
    assert 0 <= row.success_low < 50 < row.success_high <= 100 and 1 <= row.turns_low < 1.5 < row.turns_high <= 2
    few = by_step(frame(*rows[:3])).iloc[0]
    assert few.success == 100 and np.isnan(few.success_low), "three tasks tell nothing of how they vary"
    assert len(analysis.dynamics(frame(*rows)).figure.axes[0].collections) == 1, "the band"


def test_dynamics_of_grpo_beside_ours() -> None:
    found = analysis.dynamics([RUNS / "aligned", RUNS / "grpo"])
    assert set(found.tables["steps"].run) == set(found.numbers) and len(found.numbers) == 2
    ours, grpo = found.numbers.values()
    assert "rectified_gap" in ours and "rectified_gap" not in grpo and "success" in grpo


def test_mechanism_shows_the_recorded_pairs() -> None:
    found = analysis.mechanism(RUNS / "aligned", encoder="lexical")
    chosen = {name: found.numbers[name] for name in ("step", "task", "rollout")}
    turns = analysis.spans(RUNS / "aligned").tables["spans"]
    rows = turns[(turns.step.astype(str) == chosen["step"]) & (turns.task == chosen["task"])]
    assert len(rows[rows.rollout == chosen["rollout"]]) == found.tables["rollout"].credit_span.nunique()
    assert found.numbers["pairs used in this task"] == len(found.tables["matches"])
    assert found.tables["matches"].source_action.str.len().gt(0).all(), "what the teacher would have done at the source"
    with pytest.raises(ValueError, match="task 'none' isn't in aligned"):
        analysis.mechanism(RUNS / "aligned", task="none", encoder="lexical")


# Files, intervals, commands


def test_an_interval_resamples_clusters() -> None:
    assert clustered_ratio([1] * 5, [2] * 5) == [0.5, 0.5, 0.5] and clustered_ratio([], []) is None
    value, low, high = clustered_ratio([0, 4, 0, 4, 0, 4], [4] * 6)
    # a resample of six has a share of k / 6 with odds binomial(6, 1/2): 2.5 % of them are at or below 1 / 6
    assert (value, low, high) == (0.5, pytest.approx(1 / 6), pytest.approx(5 / 6))
    alone = clustered_ratio([1, 3], [4, 4])
    assert alone[0] == 0.5 and np.isnan(alone[1:]).all(), "two tasks say nothing of how tasks vary"


@pytest.mark.full
def test_every_command_writes_figure_and_data(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, out = str(RUNS / "aligned"), tmp_path / "figures"
    for name, extra in (
        ("temporal", ["--step", "0"]),
        ("thinking", ["--encoder", "lexical"]),
        ("spans", []),
        ("mechanism", ["--encoder", "lexical"]),
        ("dynamics", [str(RUNS / "grpo")]),
    ):
        main([name, run, *extra, "-o", str(out)])
        assert (out / f"{name}.png").stat().st_size > 5_000 and json.loads((out / f"{name}.json").read_text())
        assert list(out.glob(f"{name}_*.csv")) and f"{name}.png" in capsys.readouterr().out


def test_what_was_not_recorded_is_told_with_the_option(capsys: pytest.CaptureFixture) -> None:
    words = "'credit_span'", "--method align_opsd with --allocation span"
    fails(["analyse", "spans", str(RUNS / "grpo")], *words, capsys=capsys)
    fails(["analyse", "dynamics", "/nowhere"], "give the output_dir of a run", capsys=capsys)
    with pytest.raises(ValueError, match="step 9 isn't in aligned; its steps are 0, 1"):
        analysis.temporal(RUNS / "aligned", steps=[9])
