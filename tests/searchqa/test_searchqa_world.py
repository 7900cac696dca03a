"""The closed world: its face for a person."""

from __future__ import annotations

import io

import pytest

from alignopsd_trl.environments.searchqa import suite
from alignopsd_trl.environments.searchqa.__main__ import main


@pytest.mark.parametrize(
    ("answer", "verdict"), [("{golden}", "Right."), ("nothing", "Wrong."), (None, "turn 2 of 4"), ("", "cost nothing")]
)
def test_a_person_can_play(
    answer: str | None, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = suite().panel("train").rows[3]
    typed = "Lumloom\n" if answer is None else f"Lumloom\n= {answer.format(golden=task['golden_answers'][0])}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    main(["--panel", "train", "--seed", "3"])
    out = capsys.readouterr().out
    assert task["question"] in out and "Lumloom" in out and verdict in out


def test_a_wrong_entry_is_no_turn_and_a_task_has_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n=\n?\nq\n"))
    main(["--task", "nq/test_0"])
    out = capsys.readouterr().out
    assert "in which year was lidda eskerry born" in out and out.count("cost nothing") == 2
    assert "give the answer" in out and "turn 1 of 4" in out and "turn 2" not in out
    with pytest.raises(SystemExit) as stopped:
        main(["--task", "nq/test_O"])
    assert stopped.value.code == 2 and "there is no task 'nq/test_O'; there are nq/test_" in capsys.readouterr().err


def test_four_searches_end_the_game(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("zzzz\n" * 4))
    main([])
    out = capsys.readouterr().out
    assert "No passage matches." in out and "No answer." in out and "Reward 0 after 4 turns, 3 searches." in out
