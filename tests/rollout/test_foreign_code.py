"""What code of a task may do to the process that plays it: it costs the episode, with its cause, and nothing else."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.plays import play_with
from fakes.toy import Scripted, ToyEnvironment, build_tokenizer
from fakes.trainers import trained

from alignopsd_trl.commands.own_task.check.starting import faults, open_all
from alignopsd_trl.commands.own_task.playing import Answer, play
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.environments import Ending, Failure, Opening, Step, open_batch
from alignopsd_trl.environments.adapters import ToolEnvironment
from alignopsd_trl.environments.base import EnvironmentsDown, Suite
from alignopsd_trl.environments.batch import SerialBatch
from alignopsd_trl.environments.loading import load
from alignopsd_trl.rollout.episode import no_skills
from alignopsd_trl.skills import load_skills, skill_source

ROWS = [{"task_id": f"toy/{number}", "target": "nine", "dynamics_seed": number} for number in range(4)]
EXITS = [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RecursionError]


class Leaves(ToyEnvironment):
    """Raises in the call and of the kind that a row names."""

    def reset(self, task_id: str, target: str, dynamics_seed: int, **columns: Any) -> Opening:
        self.place, self.kind = columns.get("place"), columns.get("kind", ValueError)
        self._leave("reset")
        return super().reset(task_id, target, dynamics_seed)

    def step(self, action: str) -> Step:
        self._leave("step")
        return super().step(action)

    def finish(self) -> Ending | None:
        self._leave("finish")
        return None

    def close(self) -> None:
        self._leave("close")

    def _leave(self, place: str) -> None:
        if place == getattr(self, "place", None):
            raise self.kind(place)


@pytest.mark.parametrize("place", ["reset", "step", "finish"])
@pytest.mark.parametrize("kind", EXITS)
def test_whatever_a_call_raises_costs_its_episode_at_once(kind: type[BaseException], place: str) -> None:
    batch = open_batch(Leaves, 2, time_limit=30.0)
    rows = [ROWS[0], ROWS[1] | {"place": place, "kind": kind}]
    answers = [batch.reset([0, 1], rows), batch.step([0, 1], ["left"] * 2), batch.finish([0, 1])]
    failed = [found[1] for found in answers if isinstance(found[1], Failure)]
    assert len(failed) == 3 - ["reset", "step", "finish"].index(place)
    assert {one.message for one in failed} == {failed[0].message}, "a lost slot goes on to say what it was lost by"
    assert failed[0].message.startswith(f"{kind.__name__}: {place} (test_foreign_code.py, line")
    assert not any(isinstance(found[0], Failure) for found in answers)
    assert isinstance(batch.reset([1], ROWS[1:2])[0], Opening)
    batch.reset([0], [ROWS[0] | {"place": "close", "kind": kind}])
    batch.close()


def test_ctrl_c_passes_through_environments_of_the_callers_own_thread() -> None:
    batch = SerialBatch([Leaves(), Leaves()])
    assert isinstance(batch.reset([0, 1], [ROWS[0] | {"place": "reset", "kind": SystemExit}, ROWS[1]])[0], Failure)
    with pytest.raises(KeyboardInterrupt):
        batch.reset([0], [ROWS[0] | {"place": "reset", "kind": KeyboardInterrupt}])


def test_a_factory_that_exits_or_shares_one_object_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"making an environment ended in SystemExit: 0 .*mend its factory"):
        open_batch(lambda: sys.exit(0), 2)
    one = ToyEnvironment()
    with pytest.raises(TypeError, match=r"ToyEnvironment: its factory returned the same object for several episodes"):
        open_batch(lambda: one, 2)

    class Tools:
        def reset(self, **row: Any) -> str:
            return "go"

        def walk(self) -> str:
            """Walks."""
            return "done"

    shared = Tools()
    batch = open_batch(ToolEnvironment(lambda: shared), 2)
    with pytest.raises(EnvironmentsDown, match="Tools: its factory returned the same object"):
        batch.reset([0, 1], [{"task_id": "a", "prompt": "go"}] * 2)
    batch.close()
    (tmp_path / "leaving_suite.py").write_text("import sys\n\ndef suite(**options):\n    sys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="'leaving_suite': suite.* failed with SystemExit: 0 .*line 4"):
        load("leaving_suite")


def _hint(task_text: str, row: dict[str, Any]) -> str:
    if row["task_id"] == "toy/2":
        raise row.get("kind", KeyError)("colour")
    return "pick nine"


@pytest.mark.parametrize("kind", [KeyError, SystemExit])
def test_a_skill_that_fails_for_a_row_costs_the_episodes_of_this_row(kind: type[BaseException]) -> None:
    tokenizer, rows = build_tokenizer(), [row | {"kind": kind} for row in ROWS]
    skills = skill_source(load_skills(_hint), tokenizer, 30)
    sampler = Scripted(lambda prompts: ([[tokenizer.eos_token_id] for _ in prompts], None))
    played = play_with(sampler, ToyEnvironment, rows, tokenizer, skills=skills)
    assert [one.failed for one in played] == [False, False, True, False]
    assert "task 'toy/2': its skill: " in played[2].message and "test_foreign_code.py, line" in played[2].message
    walked = play(ToyEnvironment, rows, lambda asked: [Answer("", "left") for _ in asked], skills=skills)
    assert [one.trajectory.failed for one in walked] == [False, False, True, False]
    assert f"{kind.__name__}: " in walked[2].trajectory.message


def test_every_task_is_opened_and_asked_for_its_skill() -> None:
    rows = [dict(ROWS[0], task_id=f"toy/{number}") for number in range(40)]
    rows[33] |= {"place": "reset"}
    task = Task("toy", Suite.of_rows("toy", Leaves, lambda split: rows, description={}))
    opened = open_all(task, rows, 5.0, over=math.inf)
    closed, unskilled = faults(rows, opened, skill_source(load_skills(_hint), build_tokenizer(), 30))
    assert closed.text.startswith("1 of 40 tasks failed, the first 'toy/33' with: ValueError: reset (test_foreign_code")
    assert unskilled.about == "skill" and "1 of 39 tasks failed, the first 'toy/2' with: its skill: " in unskilled.text
    assert not list(faults([*rows, *rows], opened[:30], no_skills)), "that not all were opened is no fault of the task"


class Wanders(ToyEnvironment):
    def step(self, action: str) -> Step:
        os.chdir("/")
        return super().step(action)


def test_files_of_a_run_stay_together_where_an_environment_changes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = trained(Path("run"), Wanders, save_trajectories=True, save_strategy="steps", save_steps=1)
    trainer.save_model()
    assert Path.cwd() == Path("/")
    found = {file.name for file in (tmp_path / "run").iterdir()}
    assert {"run.json", "log.jsonl", "trajectories", "checkpoint-1", "config.json"} <= found
    assert [*tmp_path.iterdir()] == [tmp_path / "run"]
