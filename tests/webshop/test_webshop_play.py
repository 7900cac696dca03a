"""Shopping by hand, with typed lines in place of a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from webshop_files import COPIES

from alignopsd_trl.environments.webshop.__main__ import main

Play = Callable[..., int]


@pytest.fixture
def play(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setenv("ALIGNOPSD_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*lines: str, arguments: tuple[str, ...] = ("--seed", "3")) -> int:
        typed = iter(lines)
        monkeypatch.setattr("builtins.input", lambda *_: next(typed, "q"))
        return main([*arguments, "--data-dir", str(COPIES / "catalogue_a")])

    return run


def test_a_purchase_shows_the_score_in_parts(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("henley shirt", "3", "click[buy now]") == 0
    shown = capsys.readouterr().out
    assert "Page 1 (Total results:" in shown
    assert "2 click[next >]" in shown
    assert "r_type" in shown and "title_score" in shown


def test_a_wrong_entry_costs_no_step_and_says_so(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("", "99", "click[no such thing]", "henley shirt", "more words", "?", "q") == 1
    shown = capsys.readouterr().out
    assert shown.count("cost nothing") == 4 and "'99' does nothing here" in shown and "nothing was typed" in shown
    assert "14 steps left" in shown and "13 steps left" not in shown, "one search, and nothing else"
    assert "search[red shoes]" in shown and "leave" in shown


def test_a_task_has_a_name(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("q", arguments=("--task", "canonical-00001")) == 1
    assert "goal 1 of" in capsys.readouterr().out
    for wrong in (("--task", "canonical-1"), ("--goal", "99999")):
        with pytest.raises(SystemExit) as stopped:
            play("q", arguments=wrong)
        assert stopped.value.code == 2
    assert "there is no task 'canonical-1'" in (told := capsys.readouterr().err) and "must be 0 to" in told


def test_leaving_and_running_out_of_steps(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("q") == 1
    assert play("a", "search[b]", arguments=("--goal", "1", "--max-steps", "2")) == 1
    assert "nothing was bought" in capsys.readouterr().out
