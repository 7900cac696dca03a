"""What a run shows, at 80, 100 and 120 columns."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes.recorded import RUNS

from alignopsd_trl.commands.launch import running
from alignopsd_trl.commands.launch.running import closing, opening, page_of
from alignopsd_trl.common.files import write_text
from alignopsd_trl.common.statistics import Interval, share_of_tasks, wilson
from alignopsd_trl.rollout.metrics import SQUARES
from alignopsd_trl.runs.folder import RunFolder
from alignopsd_trl.training.console import (
    LEGEND,
    Lines,
    header,
    line,
    outcome,
    share,
    shares,
    show_note,
    spark,
    unusual,
)

ARGS = SimpleNamespace(generation_batch_size=64, logging_steps=1, num_generations=8, steps_per_round=1)

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
    curve = [Interval(0.25, 0.1, 0.45), Interval(0.3), Interval(0.5, 0.38, 0.62)]
    shown, *below = line("150/150", LOGS, curve, 64, width).splitlines()
    assert max(map(len, [title, shown, *below])) <= width and max(map(len, LEGEND.splitlines())) <= 100
    assert shown.startswith("  150/150   50.0 [38, 62]") and "+25.0 " in shown and "60/20/10/10" in shown
    assert shown.index("71.5") + 4 == title.index("score") + 5 and shown.index("10.0") + 4 == title.index("sec") + 3
    assert ("▃▃▅" in shown) == (width >= 100) and shown.index("60/20") == title.index("shares")
    assert shown.index("2 failed") == title.index("unusual")


def test_intervals_need_five_episodes_and_curves_eight_characters() -> None:
    logs = {"episodes/success": 0.5, SQUARES: 0.25}
    assert share(outcome(logs, 1, 4)) == " 50.0" and share(outcome(logs, 16, 64)) == " 50.0 [38, 62]"
    assert share(outcome({"episodes/score": 0.5}, 16, 64)) == " 50.0", "a score has no interval"
    assert spark([0.0, 100.0]) == "▁█" and len(spark([float(number) for number in range(100)])) == 8
    assert shares({"seconds/update": 3.0}) == "0/0/0/100" and shares({}) == "0/0/0/0"
    assert (
        unusual(LOGS, 64) == "2 failed, 50% cut, 99% invalid, 30% repeated, 3 without reward" and unusual({}, 64) == ""
    )


BARS_OF = {-1.125: "▅▁", -0.5: "▃▁", -7.0: "█▁", 1.5: "▁█", 1e30: "▁█", -1e308: "█▁", 1e308: "▁█"}


@pytest.mark.parametrize("value", BARS_OF)
def test_a_score_may_be_any_number(value: float) -> None:
    logs = {"episodes/score": value}
    curve = [outcome(one, 1, 1) for one in ({"episodes/score": 0.0}, logs)]
    shown = line("2/2", logs, curve, 1, None)
    assert f" {BARS_OF[value]} " in shown and len(shown) < 110
    assert spark([-1e308, 1e308]) == "▁█" and spark([0.0, -50.0, 100.0]) == "▃▁█"


def test_one_line_an_update_and_one_header(capsys: pytest.CaptureFixture[str]) -> None:
    lines, args = Lines(), ARGS
    state = SimpleNamespace(log_history=[], is_world_process_zero=True, global_step=0, max_steps=2)
    lines.on_train_begin(args, state, None)
    for step in (1, 2):
        state.global_step = step
        lines.on_log(args, state, None, logs=dict(LOGS))
    lines.on_log(args, state, None, logs={"train_runtime": 3.0})
    state.is_world_process_zero = False
    lines.on_log(args, state, None, logs=dict(LOGS))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5 and printed[3].startswith("      1/2") and printed[4].startswith("      2/2")


def test_a_line_waits_for_the_seconds_of_its_whole_round(capsys: pytest.CaptureFixture[str]) -> None:
    state = SimpleNamespace(log_history=[], is_world_process_zero=True, global_step=0, max_steps=2)
    lines, args = Lines(), SimpleNamespace(**vars(ARGS) | {"steps_per_round": 2})
    seconds = {name: value for name, value in LOGS.items() if name.startswith("seconds/")}
    for state.global_step, logs in ((1, {name: LOGS[name] for name in LOGS if name not in seconds}), (2, seconds)):
        lines.on_log(args, state, None, logs=dict(logs))
    printed = capsys.readouterr().out.splitlines()
    assert printed[3:] == [one for one in printed if "2/2" in one and "50.0" in one and " 10.0 " in one]


def test_a_change_within_what_tasks_differ_by_has_a_question_mark() -> None:
    first, near, far = Interval(0.1, 0.03, 0.3), Interval(0.2, 0.1, 0.4), Interval(0.7, 0.5, 0.85)
    assert "+10.0?" in line("2/2", LOGS, [first, near], 64, None) and "-10.0?" in line(
        "2/2", LOGS, [near, first], 64, 80
    )
    assert "+60.0 " in line("2/2", LOGS, [first, far], 64, None)
    assert "+60.0?" in line("2/2", LOGS, [Interval(0.1), Interval(0.7)], 64, None), "of scores nothing is known"


def test_an_interval_of_a_round_is_that_of_its_tasks() -> None:
    def width(*shares: float, group: int = 8) -> float:
        mean, squares = sum(shares) / len(shares), sum(one**2 for one in shares) / len(shares)
        found = share_of_tasks(mean, squares, len(shares), group * len(shares))
        assert 0 <= found.low <= mean <= found.high <= 1
        return found.high - found.low

    alone, all_alike, all_apart = np.ptp(wilson(0.5, 8)), width(*[0.5] * 8), width(*[0, 1] * 4)
    assert all_apart == pytest.approx(alone), "eight tasks that are won or lost as a whole are eight episodes"
    assert np.ptp(wilson(0.5, 64)) <= all_alike < 0.7 * all_apart
    assert width(*[0.0] * 8) == pytest.approx(width(*[1.0] * 8)) == pytest.approx(wilson(0.0, 8)[1])
    assert abs(width(*[0.0] * 8) - width(0.125, *[0.0] * 7)) < 0.05, "one episode won is no cliff"
    assert width(0.0) > 0.7 and width(0.5) > 0.7, "one task tells little"


def test_notes_are_whole_in_files_and_wrapped_on_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "1 of 8 episodes failed; the first: " + "because of this and that " * 12 + "at last: disk full"
    show_note(text)
    assert capsys.readouterr().out == f"{'':>9}  {text}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "90")
    show_note(text)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 90 and " ".join(shown.split()) == text


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


def test_the_last_screen_pairs_before_and_after_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Path("outputs/x"), "0123")
    left = ("run.json", "results.json", "log.jsonl", "trajectories/step_000000_rank000.parquet")
    for name in (*left, "checkpoint-3/trainer_state.json", "model.safetensors"):
        write_text(folder.path / name, "")
    before, after = _evaluation([False] * 20), _evaluation([True] * 10 + [False] * 10)
    screen = closing(before, after, folder, "outputs/x/view.html")
    rows = {row.split("  ")[0]: row for row in screen.splitlines() if row}
    assert "50.0 [18.0, 82.0]" in rows["odd"] and "outputs/x" in screen
    last = screen.splitlines()[-3:]
    assert last[0] == "before  success 50.0 [18.0, 82.0] %"
    assert last[1].startswith("after   success 50.0 [18.0, 82.0] %; by task +50.0 [+")
    assert last[2] == "page    outputs/x/view.html"
    assert "1 episodes failed" in screen and max(map(len, screen.splitlines())) <= 100
    assert "before  not played (evaluate_first=False)\nafter   success 50" in closing(None, after, folder, "-")
    assert "results.json, checkpoints, log.jsonl, trajectories/, the model are in outputs/x" in screen
    unknown = {"mean": None, "low": None, "high": None, "episodes": 20}
    blind = [
        {**one, "success": unknown, "outcomes": [{**row, "won": None} for row in one["outcomes"]]}
        for one in (before, after)
    ]
    assert (
        closing(*blind, folder, "-").splitlines()[-2].startswith("after   score 50.0 [18.0, 82.0] %; by task +50.0 [")
    )
    for name in left:
        (folder.path / name).unlink()
    screen = closing(before, after, folder, page_of(folder.path))
    assert "checkpoints, the model are in" in screen and "run.json is gone: something removed files" in screen
    assert screen.splitlines()[-1].startswith("page    none: this run kept no trajectories")


def test_a_page_that_cant_be_written_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path(shutil.copytree(RUNS / "aligned", "run"))
    assert page_of(run) == "run/view.html" and "<html" in Path("run/view.html").read_text()
    Path("run/view.html").write_text("mine")
    assert page_of(run).startswith("not written: run/view.html is there, and is not as alignopsd view wrote it")
    assert Path("run/view.html").read_text() == "mine"
    monkeypatch.setattr(running, "PAGE_BYTES", 10)
    assert page_of(run).startswith("alignopsd view run --step 0 writes one")


def test_the_last_screen_counts_the_last_actions_of_lost_episodes_by_category() -> None:
    after = _evaluation([place % 4 == 0 for place in range(40)])
    assert "last action" not in closing(None, after, RunFolder(Path("outputs/x"), "0123"), "-")  # of an earlier version
    for place, one in enumerate(after["outcomes"]):
        one["last_action"] = "put\ncart" if place < 20 else f"put {place} {'far ' * 40}"
    screen = closing(None, after, RunFolder(Path("outputs/x"), "0123"), "-").splitlines()
    at = screen.index("lost episodes, by their last action:")
    assert screen[at + 1].startswith("odd: 20, of them 10 'put cart', 1 'put 21 far far") and len(screen[at + 1]) <= 100
    assert screen[at + 2].startswith("even: 10, of them 5 'put cart', 1 'put 22 far")
    for one in after["outcomes"]:
        one["won"] = None
    assert "last action" not in closing(None, after, RunFolder(Path("outputs/x"), "0123"), "-")


def test_the_first_screen_says_what_runs_and_what_is_not_as_usual() -> None:
    changed = {f"setting_{number}": number for number in range(20)}
    screen = opening({"method": "grpo", "model": "m" * 300}, changed, RunFolder(Path("o"), "0123", "o/checkpoint-3", 2))
    assert max(map(len, screen.splitlines())) <= 120 and "setting_19=19" in screen
    assert "goes on from o/checkpoint-3, session 2" in screen
