"""What a run shows, at 80, 100 and 120 columns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from alignopsd_trl.launch.screens import closing, opening
from alignopsd_trl.runs.console import LEGEND, Lines, header, line, share, shares, show_note, spark, unusual
from alignopsd_trl.runs.folder import RunFolder

LOGS = {
    "episodes/success": 0.5,
    "episodes/score": 0.715,
    "episodes/turns": 4.31,
    "seconds/rollout": 6.0,
    "seconds/privileged_thinking": 2.0,
    "seconds/credit": 1.0,
    "seconds/update": 1.0,
    "stop/environment_error": 2 / 64,
    "turns/truncated": 0.5,
    "turns/invalid_actions": 0.99,
    "turns/repeated": 0.3,
    "rewards/bonus/none": 3,
}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_line_fits_and_its_columns_stand_under_their_names(width: int) -> None:
    title = header(width)
    shown = line("150/150", LOGS, [25.0, 30.0, 50.0], 64, width)
    assert len(title) <= width and len(shown) <= width and len(LEGEND) <= 80
    assert shown.startswith("  150/150   50.0 [38, 62]") and "+25.0" in shown and "60/20/10/10" in shown
    assert shown.index("71.5") + 4 == title.index("score") + 5 and shown.index("10.0") + 4 == title.index("sec") + 3
    assert ("▃▃▅" in shown) == (width >= 100) and shown.index("60/20") == title.index("shares")
    assert shown.index("2 failed") == title.index("unusual")


def test_intervals_need_five_episodes_and_curves_eight_characters() -> None:
    assert share(50.0, 4) == " 50.0" and share(0.0, 64) == "  0.0 [0, 6]"
    assert spark([0.0, 100.0]) == "▁█" and len(spark([float(number) for number in range(100)])) == 8
    assert shares({"seconds/update": 3.0}) == "0/0/0/100" and shares({}) == "0/0/0/0"
    assert (
        unusual(LOGS, 64) == "2 failed, 50% cut, 99% invalid, 30% repeated, 3 without reward" and unusual({}, 64) == ""
    )


def test_one_line_an_update_and_one_header(capsys: pytest.CaptureFixture[str]) -> None:
    lines, args = Lines(), SimpleNamespace(generation_batch_size=64, logging_steps=1)
    state = SimpleNamespace(log_history=[], is_world_process_zero=True, global_step=0, max_steps=2)
    lines.on_train_begin(args, state, None)
    for step in (1, 2):
        state.global_step = step
        lines.on_log(args, state, None, logs=dict(LOGS))
    lines.on_log(args, state, None, logs={"train_runtime": 3.0})
    state.is_world_process_zero = False
    lines.on_log(args, state, None, logs=dict(LOGS))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4 and printed[2].startswith("      1/2") and printed[3].startswith("      2/2")


def test_a_failed_episode_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    show_note("1 of 8 episodes failed; the first: Error: " + "line\n" * 10000)
    assert len(capsys.readouterr().out.splitlines()) == 1


def _evaluation(won: list[bool]) -> dict[str, Any]:
    estimate = {"mean": 50.0, "low": 18.0, "high": 82.0, "episodes": len(won)}
    outcomes = [
        {"task_id": f"t{place}", "category": "odd" if place % 2 else "even", "won": one, "score": float(one)}
        for place, one in enumerate(won)
    ]
    row = {"success": estimate, "score": estimate}
    facts = {"episodes": len(won), "environment_errors": 1, "panel": "test", "checksum": "abc", "temperature": 0.4}
    return {**row, **facts, "categories": {"even": row, "odd": row}, "outcomes": outcomes}


def test_the_last_screen_pairs_before_and_after_by_task() -> None:
    folder = RunFolder(Path("outputs/x"), "0123")
    before, after = _evaluation([False] * 20), _evaluation([True] * 10 + [False] * 10)
    screen = closing(before, after, folder)
    rows = {row.split("  ")[0]: row for row in screen.splitlines() if row}
    assert "+50.0 [+" in rows["all"] and "50.0 [18.0, 82.0]" in rows["odd"] and "outputs/x" in screen
    assert screen.splitlines()[-1] == "where the credit went: alignopsd view outputs/x"
    assert "1 episodes failed" in screen and max(map(len, screen.splitlines())) <= 100
    assert closing(None, after, folder).count(" -") >= 4


def test_the_first_screen_says_what_runs_and_what_is_not_as_usual() -> None:
    changed = {f"setting_{number}": number for number in range(20)}
    screen = opening({"method": "grpo", "model": "m" * 300}, changed, RunFolder(Path("o"), "0123", "o/checkpoint-3", 2))
    assert max(map(len, screen.splitlines())) <= 120 and "setting_19=19" in screen
    assert "goes on from o/checkpoint-3, session 2" in screen
