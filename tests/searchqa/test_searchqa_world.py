"""The closed world, the scripted player that solves it, and the face for a person."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.base import Record, View, open_batch
from environments.searchqa import CLOSED_WORLD, Averages, averages, suite
from environments.searchqa.closed_world import check, generate
from environments.searchqa.player import ScriptedPlayer


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
    while live:
        views = [View(openings[slot].task_text, "", (), history[slot], len(history[slot])) for slot in live]
        answers = [player.respond(view) for view in views]
        projections = [batch.project(answer) for answer in answers]
        assert all(projection.valid for projection in projections)
        responses += answers
        steps = batch.step(live, [projection.action for projection in projections])
        for slot, projection, step in zip(live, projections, steps, strict=True):
            history[slot] += (Record(len(history[slot]) + 1, "", projection.action, step.observation),)
            if step.done:
                scores[slot] = step.score
        live = [slot for slot in live if slot not in scores]
    return averages((row["data_source"], scores[slot]) for slot, row in enumerate(rows)), responses


@pytest.mark.parametrize("style", ["plain", "json"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_player_without_errors_answers_every_question(split: str, style: str) -> None:
    found, _ = play(split, style, 0.0)
    assert found.question_weighted_mean == found.macro_mean == 1.0


def test_errors_cost_accuracy_and_repeat_with_their_seed() -> None:
    means = [play("test", "plain", rate)[0].question_weighted_mean for rate in (0.2, 0.5, 1.0)]
    assert 1.0 > means[0] > means[1] > means[2]
    assert play("test", "plain", 0.5)[1] == play("test", "plain", 0.5)[1] != play("test", "plain", 0.5, seed=1)[1]


def test_the_player_refuses_what_it_can_not_play() -> None:
    with pytest.raises(ValueError, match="error_rate"):
        ScriptedPlayer(1.5)
    with pytest.raises(ValueError, match="not a question of the closed world"):
        ScriptedPlayer().respond(View("Who?", "", (), (), 0))


def lines_of(*arguments: str, typed: str) -> Iterator[str]:
    command = [sys.executable, "-m", "environments.searchqa", *arguments]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return iter(done.stdout.splitlines())


def test_a_person_can_play() -> None:
    task = suite().panel("train").rows[3]
    out = "\n".join(lines_of("--panel", "train", "--seed", "3", typed=f"Lumloom\n= {task['golden_answers'][0]}\n"))
    assert task["question"] in out and "Lumloom" in out and "Right." in out and "Reward 1" in out
    assert "Good-bye" in "\n".join(lines_of(typed=""))
