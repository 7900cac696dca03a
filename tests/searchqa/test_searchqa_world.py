"""The closed world, the scripted player that solves it, and the face for a person."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.searchqa import CLOSED_WORLD, Averages, averages, suite
from alignopsd_trl.environments.searchqa.__main__ import main
from assets.worlds.closed_world import check, generate
from assets.worlds.closed_world_player import ScriptedPlayer


def test_the_generator_gives_the_shipped_files_byte_for_byte(tmp_path: Path) -> None:
    generate(tmp_path)
    for name in ("corpus.jsonl", "train.jsonl", "test.jsonl"):
        assert (tmp_path / name).read_bytes() == (CLOSED_WORLD / name).read_bytes(), name
    generate(tmp_path, seed=8)
    assert (tmp_path / "corpus.jsonl").read_bytes() != (CLOSED_WORLD / "corpus.jsonl").read_bytes()


def test_the_shipped_files_keep_their_promises() -> None:
    figures = check(CLOSED_WORLD)
    assert (figures["passages"], figures["train"], figures["test"]) == (300, 200, 200)
    assert figures["types"] == {"single_hop": 240, "bridge": 100, "comparison": 60}


def play(split: str, style: str, error_rate: float, seed: int = 0) -> tuple[Averages, list[str]]:
    """All questions of a split side by side; the accuracies and every response."""
    world = suite(style=style)
    rows = world.panel(split).rows
    batch, player = open_batch(world.factory, len(rows)), ScriptedPlayer(error_rate, seed)
    openings = batch.reset(range(len(rows)), rows)
    history: list[tuple[Record, ...]] = [() for _ in rows]
    scores, responses, live = {}, [], list(range(len(rows)))
    for _ in range(batch.max_turns):
        views = [View(openings[slot].task_text, "", (), history[slot], len(history[slot])) for slot in live]
        answers = [player.respond(view) for view in views]
        projections = [batch.project(answer) for answer in answers]
        assert all(projection.valid for projection in projections)
        responses += answers
        steps = batch.step(live, [projection.action for projection in projections])
        for slot, projection, step in zip(live, projections, steps, strict=True):
            history[slot] += (Record(len(history[slot]) + 1, "", projection.action, step.observation),)
            scores[slot] = step.score
        live = [slot for slot, step in zip(live, steps, strict=True) if not step.done]
    return averages((row["data_source"], scores[slot]) for slot, row in enumerate(rows)), responses


@pytest.mark.parametrize("style", ["plain", "json"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_player_without_errors_answers_every_question(split: str, style: str) -> None:
    found, _ = play(split, style, 0.0)
    assert found.question_weighted_mean == found.macro_mean == 1.0


@pytest.mark.full
def test_errors_cost_accuracy_and_repeat_with_their_seed() -> None:
    means = [play("test", "plain", rate)[0].question_weighted_mean for rate in (0.2, 0.5, 1.0)]
    assert 1.0 > means[0] > means[1] > means[2]
    assert play("test", "plain", 0.5)[1] == play("test", "plain", 0.5)[1] != play("test", "plain", 0.5, seed=1)[1]


def test_the_player_refuses_what_it_can_not_play() -> None:
    with pytest.raises(ValueError, match="error_rate"):
        ScriptedPlayer(1.5)
    with pytest.raises(ValueError, match="not a question of the closed world"):
        ScriptedPlayer().respond(View("Who?", "", (), (), 0))


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
