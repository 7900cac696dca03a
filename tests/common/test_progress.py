"""Progress that moves with every turn, on a terminal and in a log file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from fakes.trainers import make_trainer

from alignopsd_trl.common import progress
from alignopsd_trl.common.progress import Bar, duration


def _bar(monkeypatch: pytest.MonkeyPatch, seconds: list[float], **options: object) -> Bar:
    times = iter(seconds)
    monkeypatch.setattr(Bar, "clock", staticmethod(lambda: next(times)))
    return Bar(200, "panel test", **options)


def test_time_left_is_known_from_the_first_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    with _bar(monkeypatch, [0.0, 9.0, 9.0, 10.0, 10.0, 20.0, 20.0, 20.0], most_turns=10) as bar:
        bar(0, 1)
        assert bar.seconds_left() is None  # of one turn, beside which others are asked
        bar(0, 199)
        assert bar.seconds_left() == 100.0  # none ended: ten turns each, at 20 turns a second
        bar(100, 200)
        assert bar.seconds_left() == 20.0  # 400 turns for 100 episodes; four for each of the others


def test_a_log_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with _bar(monkeypatch, [0.0, 10.0, 40.0, 40.0, 50.0], beyond=lambda: "the run's updates: about 1:10") as bar:
        bar(0, 64)
        bar(16, 48)
        bar(1, 0)
    printed = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in printed] == [
        "panel test: 16/200 episodes ended, 112 turns; about 7:40 left; the run's updates: about 1:10"
    ]


def test_a_terminal_has_one_live_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with _bar(monkeypatch, [0.0, 1.0, 1.0, 2.0, 2.0]) as bar:
        bar(0, 8)
        bar(2, 6)
    shown = capsys.readouterr().err
    assert "\n" not in shown and shown.count("\r") == 3 and "2/200 episodes ended, 14 turns" in shown


def test_durations_are_read_as_on_a_clock() -> None:
    assert [duration(seconds) for seconds in (5, 65.4, 7265)] == ["0:05", "1:05", "2:01:05"]


def test_rounds_and_panels_say_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "NOW_AND_THEN", 0.0)
    make_trainer(tmp_path, disable_tqdm=False, max_steps=2, save_trajectories=True).train()
    told = capsys.readouterr()
    assert re.search(r"update 1/2: rollout: \d/8 episodes ended, 8 turns; about ", told.err)
    assert "update 2/2: rollout: 8/8 episodes ended" in told.err and "the run's updates: about" in told.err
    assert told.out.splitlines()[-1] == f"where the credit went: alignopsd view {tmp_path}"
