"""The list of a run's files: docs/runs.md is held to it, and every reader names what is not as the run wrote it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes.own_task import fails
from fakes.recorded import RUNS

from alignopsd_trl.commands import cli
from alignopsd_trl.commands.viewer.run import read_run
from alignopsd_trl.common.files import read_json, write_json
from alignopsd_trl.results.hub import push_run
from alignopsd_trl.runs.files import FILES
from alignopsd_trl.runs.folder import RunFolder

ROUND = {"steps_per_generation": 1, "num_iterations": 2, "gradient_accumulation_steps": 2}
STEPS = {step: f"trajectories/step_{step:06d}_rank000.parquet" for step in range(2)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run's folder: two rounds of one process, log, evaluations, results."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "trajectories").mkdir()
    for step, name in STEPS.items():
        frame = pd.read_parquet(RUNS / "aligned" / "trajectories" / f"step_{step:06d}.parquet")
        frame.assign(run="r1").to_parquet(folder / name)
    for name in ("evaluation_before.json", "evaluation_after.json"):
        write_json(folder / name, {**read_json(RUNS / "aligned" / name), "run": "r1"})
    log = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    found = read_json(RUNS / "finished" / "results.json")
    write_json(folder / "results.json", {**found, "run": "r1", "history": log})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    sessions = [{"processes": 1, "started": "then", "ended": "now"}]
    write_json(folder / "run.json", {"schema": 1, "id": "r1", "configuration": ROUND, "sessions": sessions})
    return folder


def test_the_page_says_what_the_list_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    rows = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in page.splitlines() if line.startswith("| ")]
    for one in FILES:
        (row,) = (row for row in rows if row[0] == one.name)
        assert row[-2:] == [one.overwritten, "yes" if one.pushed else "no"]


def view(folder: Path) -> None:
    cli.main(["view", str(folder)])


def analyse(folder: Path) -> None:
    pytest.importorskip("matplotlib", reason='pip install "alignopsd-trl[studies]"')
    cli.main(["analyse", "dynamics", str(folder)])


def push(folder: Path) -> None:
    cli.main(["push", str(folder), "me/shopper"])


def replaced(name: str, change: Callable[[str], str]) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text()))


def changed(name: str, **fields: Any) -> Callable[[Path], Any]:
    return lambda folder: write_json(folder / name, read_json(folder / name) | fields)


def turned(step: int, change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda folder: change(pd.read_parquet(folder / STEPS[step])).to_parquet(folder / STEPS[step])


def a_folder(name: str) -> Callable[[Path], Any]:
    return lambda folder: [(folder / name).unlink(), (folder / name).mkdir()]


def every_turned(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda folder: [turned(step, change)(folder) for step in STEPS]


LOG, READERS = "log.jsonl", (view, analyse, push)
BROKEN: dict[tuple[Callable[[Path], None], ...], dict[str, tuple[Callable[[Path], Any], str]]] = {
    READERS: {
        "run.json cut": (replaced("run.json", lambda text: text[:-9]), "run.json is damaged at line"),
        "run.json of a later version": (changed("run.json", schema=999), "run.json is of schema 999, and this"),
        "results of another run": (changed("results.json", run="r2"), r"results.json is of another run \(r2;"),
        "results of a later version": (changed("results.json", schema=999), "results.json is of schema 999"),
        "a version by another name": (changed("results.json", schema_version=999), "is of schema_version 999"),
        "results that are a list": (replaced("results.json", lambda _: "[1]"), "results.json is damaged at line 1"),
        "results with a list for config": (changed("results.json", config=[1]), "is damaged: config is"),
        "results with numbers for a log": (changed("results.json", history=[1]), "is damaged: history is"),
        "results that are no text": (
            lambda folder: (folder / "results.json").write_bytes(b'{"a": "\xff"}'),
            "results.json is damaged at line 1",
        ),
        "a folder for results": (a_folder("results.json"), "results.json is a folder, where a file is read"),
        "results nested too deep": (replaced("results.json", lambda _: "[" * 10**5), "results.json is damaged at"),
        "a number of 5000 digits": (
            replaced("results.json", lambda _: '{"updates": ' + "1" * 5000 + "}"),
            "results.json is damaged at line 1",
        ),
        "a pipe for results": (
            lambda folder: [(folder / "results.json").unlink(), os.mkfifo(folder / "results.json")],
            "results.json is no plain file, where a file is read",
        ),
        "a broken link for the run": (
            lambda folder: [(folder / "run.json").unlink(), (folder / "run.json").symlink_to("gone")],
            "run.json is a broken link",
        ),
        "a run without sessions": (changed("run.json", sessions=[]), "run.json is damaged: it does not say which"),
        "processes that are a text": (
            changed("run.json", sessions=[{"processes": "two"}]),
            "run.json is damaged: it does not say which run this is",
        ),
    },
    (push,): {
        "results of nothing": (replaced("results.json", lambda _: "{}"), "no finished run in"),
        "results of an evaluation": (
            replaced("results.json", lambda _: '{"success": {"mean": 1.0}}'),
            "results.json has no 'config', and is not of a run",
        ),
        "results without the output folder": (
            changed("results.json", config={"method": "grpo"}),
            "results.json is not as a run writes it",
        ),
        "results with a list for seconds": (
            changed("results.json", seconds=[1]),
            "results.json is not as a run writes it",
        ),
        "results of no evaluation": (changed("results.json", after={}), "results.json has no 'after'"),
    },
    (view, push): {
        "a cut evaluation": (
            replaced("evaluation_before.json", lambda text: text[:-9]),
            "evaluation_before.json is damaged at line",
        ),
        "an evaluation of another run": (
            changed("evaluation_after.json", run="r2"),
            "evaluation_after.json is of another run",
        ),
    },
    (view,): {
        "a folder for dialogues": (
            lambda folder: (folder / "evaluation_before.parquet").mkdir(),
            "evaluation_before.parquet is damaged",
        ),
        "a cut log": (replaced(LOG, lambda text: text[:-9]), "log.jsonl is cut at line 2, and its run has ended"),
        "a short log": (replaced(LOG, lambda text: text.splitlines(True)[0]), "log.jsonl has 1 lines up to step"),
        "half a line for a log": (replaced(LOG, lambda _: '{"st'), "log.jsonl is cut at line 1, and its run has ended"),
        "an emptied log": (replaced(LOG, lambda _: ""), "log.jsonl has 0 lines up to step 0, and results.json 2"),
        "a doubled log": (replaced(LOG, lambda text: text * 2), r"doubled or out of order at line 3 \(step 1 aft"),
        "doubled lines": (
            replaced(LOG, lambda text: "".join(line * 2 for line in text.splitlines(True))),
            r"log.jsonl is doubled or out of order at line 2 \(step 1 after 1\)",
        ),
        "a log out of order": (
            replaced(LOG, lambda text: "".join(text.splitlines(True)[::-1])),
            "log.jsonl is doubled or out of order at line 2",
        ),
        "a log without steps": (replaced(LOG, lambda _: '{"loss": 1}\n'), "damaged at line 1: it names no step"),
        "a log that is no text": (lambda folder: (folder / LOG).write_bytes(b"\xff\n"), "log.jsonl is damaged at"),
        "a success of seven": (turned(1, lambda frame: frame.assign(won=7.0)), "a value of 'won' beyond 1"),
        "an endless score": (turned(1, lambda frame: frame.assign(score=float("inf"))), "a value of 'score' bey"),
    },
    (view, analyse): {
        "a round twice": (
            lambda folder: shutil.copy(folder / STEPS[0], folder / "trajectories" / "step_000000 (copy).parquet"),
            "holds turns of step 0 a second time; move it away",
        ),
        "a round of another run": (turned(1, lambda frame: frame.assign(run="r2")), "is of another run"),
        "rounds of another run": (
            every_turned(lambda frame: frame.assign(run="r2")),
            r"step_000000_rank000.parquet is of another run \(r2; this one is r1\)",
        ),
        "a reward that is a text": (
            turned(1, lambda frame: frame.assign(reward="high")),
            "has the column 'reward' as .*string, which is double in a run's records",
        ),
        "weights that are texts": (
            turned(1, lambda frame: frame.assign(credit_weight="high")),
            "has the column 'credit_weight' as",
        ),
        "a task without a name": (
            turned(1, lambda frame: frame.assign(task=[None, *frame.task[1:]])),
            "has rows without a 'task'",
        ),
        "no tasks": (turned(1, lambda frame: frame.drop(columns="task")), "lacks the column 'task'"),
        "no score": (every_turned(lambda frame: frame.drop(columns="score")), "has no column 'score'"),
        "no rows": (every_turned(lambda frame: frame[:0]), "holds files without a row"),
        "a file for trajectories": (
            lambda folder: [shutil.rmtree(folder / "trajectories"), (folder / "trajectories").write_text("x")],
            "no trajectories in",
        ),
    },
    (analyse,): {
        "no reward": (
            every_turned(lambda frame: frame.drop(columns="reward")),
            "has no column 'reward', which every run records",
        ),
    },
}
"""Who reads it -> what is broken: how, and what is said."""


@pytest.mark.parametrize(
    ("reader", "what"), [(reader, what) for readers, some in BROKEN.items() for what in some for reader in readers]
)
def test_a_reader_names_what_is_not_as_the_run_wrote_it(
    run: Path, reader: Any, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, told = next(some[what] for some in BROKEN.values() if what in some)
    spoil(run)
    with pytest.raises(SystemExit) as ended:
        reader(run)
    said = capsys.readouterr()
    assert ended.value.code == 2 and re.search(told, said.err), said.err
    assert len(said.err.splitlines()) == 1 and "Traceback" not in said.err and not said.out


def test_a_whole_run_is_read_without_a_word(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view(run)
    analyse(run)
    said = capsys.readouterr()
    assert not said.err and "view.html" in said.out


def test_what_is_missing_among_the_rounds_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_parquet(run / STEPS[1])
    for step, rank in ((1, 1), (3, 0), (3, 1)):
        moved = frame.assign(step=step, rollout=frame.rollout + f" of {rank}")
        moved.to_parquet(run / "trajectories" / f"step_{step:06d}_rank{rank:03d}.parquet")
    view(run)
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith("trajectories has no file of step 2 (and 1 more); bring it back, or this is without it")
    )
    write_json(run / "results.json", read_json(run / "results.json") | {"updates": 6})
    view(run)
    assert "has no file of step 2 (and 3 more)" in capsys.readouterr().err, "the run made six updates"
    sessions = [{"processes": 3, "started": "then", "released": "now"}]
    write_json(run / "run.json", read_json(run / "run.json") | {"sessions": sessions})
    (run / "results.json").unlink()
    (run / STEPS[0]).unlink()
    view(run)
    assert "has no file of step 0 (and 1 more)" in capsys.readouterr().err, "the last round may still be written"


def test_the_length_of_a_round_is_that_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / STEPS[1]).rename(run / "trajectories" / "step_000002_rank000.parquet")
    view(run)
    assert "trajectories has no file of step 1; bring it back" in capsys.readouterr().err
    write_json(run / "results.json", read_json(run / "results.json") | {"updates": 10**30})
    view(run)
    assert f"no file of step 1 (and {10**30 - 3} more)" in capsys.readouterr().err


def test_rounds_without_a_score_have_no_point_on_its_curve(run: Path) -> None:
    turned(1, lambda frame: frame.assign(score=float("nan")))(run)
    view(run)
    found = {curve.name: curve.steps for curve in read_run(run).curves}
    assert found["score, %"] == [0] and found["turns an episode"] == [0, 1]


@pytest.mark.parametrize("sources", [[999], [0, 1]])
def test_sources_that_are_not_there_are_named(
    run: Path, sources: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"credit_sources": sources, "credit_source_similarities": [0.5], "credit_source_weights": [1.0]}
    turned(1, lambda frame: frame.assign(**{name: [value] * len(frame) for name, value in one.items()}))(run)
    said = fails(["view", str(run), "--step", "1"], capsys=capsys)
    assert re.search(r"the record of step 1, rollout .* has sources that are not", said)


def test_a_push_names_a_model_that_is_not_as_the_run_left_it(run: Path) -> None:
    from alignopsd_trl.runs.folder import TRAIN
    from alignopsd_trl.runs.owned import note

    (run / "model.safetensors").write_bytes(b"weights")
    note([run / "model.safetensors"], TRAIN)
    (run / "model.safetensors").write_bytes(b"weight")
    with pytest.raises(ValueError, match="model.safetensors is not as the run wrote it; bring it back"):
        push_run(run, "me/shopper", "token")
    (run / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="model.safetensors is gone; bring it back"):
        push_run(run, "me/shopper", "token")


def checkpoint(folder: Path, update: int, **state: Any) -> None:
    place = folder / f"checkpoint-{update}"
    history = [{"loss": 1 / one, "step": one} for one in range(1, update + 1)] + [
        {"train_runtime": 1.0, "step": update}
    ]
    write_json(place / "trainer_state.json", {"global_step": update, "log_history": history})
    write_json(place / "run_state.json", state)


LINES = [json.dumps({"step": step, "loss": 1 / step}) for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (LINES, ""),
        ([*LINES[:2], '{"st'], ""),
        ([*LINES[:2], json.dumps({"step": 2, "eval_score": 1.0})], ""),
        (LINES[:1], "was cut short: 1 of 2 lines up to update 2 were gone"),
        ([], "was cut short: 2 of 2 lines"),
        ([*LINES[:2], *LINES[:2]], "held other lines up to update 2"),
        ([LINES[0], *LINES[:2]], "held other lines up to update 2"),
        ([*LINES[:2], LINES[1]], "held other lines up to update 2"),
        (LINES[1::-1], "held other lines up to update 2"),
        ([LINES[0], '{"step": 2, "loss": 7}'], "held other lines up to update 2"),
    ],
)
def test_a_resumed_run_mends_a_log_that_is_not_its_own(tmp_path: Path, lines: list[str], told: str) -> None:
    RunFolder.claim(tmp_path, {}).release()
    checkpoint(tmp_path, 2)
    (tmp_path / "log.jsonl").write_text("".join(line + "\n" for line in lines))
    run, said = RunFolder.claim(tmp_path, {}, resume=True), []
    run.release()
    run.forget_after(2, said.append)
    assert len(said) == bool(told) and told in "".join(said)
    kept = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [one["loss"] for one in kept if "loss" in one] == [1.0, 0.5] and ("eval_score" in kept[-1]) == (
        "eval_score" in "".join(lines)
    )


def test_a_resumed_run_says_which_trajectories_are_not_as_they_were(tmp_path: Path) -> None:
    RunFolder.claim(tmp_path, {}).release()
    names = [f"step_{step:06d}_rank{rank:03d}.parquet" for step in range(4) for rank in range(2)]
    for name in names:
        (tmp_path / "trajectories").mkdir(exist_ok=True)
        (tmp_path / "trajectories" / name).write_text("whole")
    checkpoint(tmp_path, 3, records=dict.fromkeys(names[:6], 5))
    (tmp_path / "completions").mkdir()
    for step in (3, 4):
        (tmp_path / "completions" / f"completions_{step:05d}.parquet").write_text("x")

    def resumed() -> list[str]:
        run, said = RunFolder.claim(tmp_path, {}, resume=True), list[str]()
        run.release()
        run.forget_after(3, said.append)
        return said

    (tmp_path / "log.jsonl").write_text("".join(line + "\n" for line in LINES))
    assert not resumed()
    assert sorted(one.name for one in (tmp_path / "trajectories").iterdir()) == names[:6]
    assert [one.name for one in (tmp_path / "completions").iterdir()] == ["completions_00003.parquet"]
    for name in names[:2]:
        (tmp_path / "trajectories" / name).unlink()
    (tmp_path / "trajectories" / names[2]).write_text("cut")
    (tmp_path / "trajectories" / "step_000001_round002_rank000.parquet").write_text("doubled")
    gone, cut, new = resumed()
    assert f"{names[0]} is gone (and 1 more); bring it back, or the run goes on without it" in gone
    assert f"{names[2]} is not as it was saved; bring it back" in cut
    assert "step_000001_round002_rank000.parquet was not written by this run; move it away" in new


def test_a_run_file_of_a_later_version_is_not_gone_on_with(tmp_path: Path) -> None:
    RunFolder.claim(tmp_path, {}).release()
    checkpoint(tmp_path, 2)
    write_json(tmp_path / "run.json", read_json(tmp_path / "run.json") | {"schema": 2})
    with pytest.raises(ValueError, match="run.json is of schema 2, of another version"):
        RunFolder.claim(tmp_path, {}, resume=True)
