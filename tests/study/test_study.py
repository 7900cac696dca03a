"""Studies: planning, running each cell once, tables and figures from rows alone, and two real cells of the toy game."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from fakes.own_task import fails
from fakes.toy import build_model, build_tokenizer

from alignopsd_trl.commands.study.__main__ import main
from alignopsd_trl.commands.study.render import difference_figure, matched, render, sensitivity_figure, training_figure
from alignopsd_trl.commands.study.rows import collect, read_rows, task_order, training_columns, weights_checksum
from alignopsd_trl.commands.study.run import _only_one, run_study, split_cores
from alignopsd_trl.commands.study.spec import StudyError, missing_data, plan, read_study
from alignopsd_trl.commands.study.tables import differences_table, reference_entry, results_table
from alignopsd_trl.common.statistics import mean, paired
from alignopsd_trl.records import Damaged, write_records

HERE = Path(__file__).parents[1]
SHIPPED = HERE.parent / "recipes" / "studies"
TWO_LINES = {"environments": ["webshop_tiny"], "methods": ["grpo", "align_opsd"], "seeds": [0, 1]}


def study_of(folder: Path, **content: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(TWO_LINES | {"output": str(folder / "out")} | content))
    return path


# ---------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"method": ["grpo"]}, "'method' is unknown"),
        ({"environments": ["webshop_70b"]}, "webshop_70b"),
        ({"environments": []}, "environments is empty"),
        ({"methods": []}, "nothing to run"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [0, -1]}, "-1 must lie in"),
        ({"seeds": [10**11]}, "must lie in"),
        ({"methods": [{"method": "grpo", "settings": {"temperature": 1}}]}, "protocol"),
        ({"sweeps": {"num_generations": [4, 8]}}, "protocol"),
        ({"settings": {"seed": 3}}, "set by the study itself"),
        ({"devices": ["0", "1"]}, "devices"),
        ({"methods": "grpo"}, "must be a list"),
        ({"environments": [{"recipe": "webshop_tiny", "averages": {"speed": "v"}}]}, "'speed' is unknown"),
        ({"methods": ["nobody"]}, "nobody"),
        ({"methods": [{"method": "skill_grpo", "skills": True}]}, "add the line 'skill_grpo'"),
        ({"methods": [{"method": "vanilla", "skills": True}]}, "skill_prompt"),
        ({"settings": {"learning_rat": 1.0}}, "learning_rat"),
    ],
)
def test_a_study_that_cannot_run_is_refused_with_the_place(tmp_path: Path, content: dict, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        plan(read_study(study_of(tmp_path, **content)))


@pytest.mark.parametrize(
    ("text", "message"), [("methods: [grpo", "study.yaml, line 1"), ("- a", "study.yaml must hold a mapping")]
)
def test_a_study_that_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(StudyError, match=message):
        read_study(tmp_path / "study.yaml")


# ---------------------------------------------------------------------- planning


def test_a_line_has_its_own_steps(tmp_path: Path) -> None:
    own = [{"num_iterations": 4}, {"updates_per_round": 2}, {"learning_rate": 5e-5}]
    lines = [{"method": "grpo", "settings": one} for one in own]
    cells = plan(read_study(study_of(tmp_path, methods=lines, seeds=[0])))
    assert [{name: one.config[name] for name in mine} for one, mine in zip(cells, own, strict=True)] == own
    assert len({one.folder for one in cells}) == 3


def test_each_seed_is_whole_and_a_checkpoint_comes_before_its_second_evaluation(tmp_path: Path) -> None:
    lines = [{"method": "skill_grpo", "skills": True}, "skill_grpo", "vanilla", "skill_prompt"]
    cells = plan(read_study(study_of(tmp_path, methods=lines)))
    assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
    by_title = {cell.line.title: cell for cell in cells[:4]}
    starred = by_title["Skill-GRPO*"]
    assert starred.source is by_title["Skill-GRPO"] and cells.index(starred) > cells.index(starred.source)
    assert [by_title[name].trains for name in ("Skill-GRPO", "Skill-GRPO*", "Vanilla")] == [True, False, False]
    assert [by_title[name].skills for name in ("Skill-GRPO", "Skill-GRPO*", "Skill-Prompt*")] == [False, True, True]


def test_lines_that_are_the_same_run_are_one_cell_in_every_table(tmp_path: Path) -> None:
    content = {
        "ablations": [{"label": "full"}, {"label": "token", "settings": {"allocation": "token"}}],
        "sweeps": {"max_sources": [2, 3], "credit_temperature": [0.5, 1.0]},
    }
    cells = [cell for cell in plan(read_study(study_of(tmp_path, **content))) if cell.seed == 0]
    assert len(cells) == 5
    full = next(cell for cell in cells if len(cell.places) > 1)
    assert {place.table for place in full.places} == {
        "methods",
        "ablations",
        "sweep max_sources",
        "sweep credit_temperature",
    }
    assert full.config == {"method": "align_opsd", "seed": 0}


def test_a_cell_is_named_by_what_decides_its_result(tmp_path: Path) -> None:
    def folders(**content: Any) -> list[Path]:
        return [cell.folder for cell in plan(read_study(study_of(tmp_path, **content)))]

    first = folders()
    relabelled = [{"method": "grpo", "label": "mine"}, "align_opsd", "sdar"]
    assert set(first) < set(folders(methods=relabelled, processes=2, name="other"))
    assert not set(first) & set(folders(settings={"rounds": 3}))
    assert not set(first) & set(folders(environments=[{"recipe": "webshop_tiny", "settings": {"beta": 0.1}}]))


def test_shipped_studies_plan_and_share_their_cells() -> None:
    planned = {path.stem: plan(read_study(path)) for path in SHIPPED.glob("*.yaml")}
    table = planned["table1_tiny"]
    assert len(table) == 36 and sum(cell.trains for cell in table) == 27
    folders = {name: {cell.folder for cell in cells} for name, cells in planned.items()}
    for world, lines in (("trips", 2), ("hops", 3), ("pairs", 3)):  # GRPO, AlignOPSD, the ceiling
        assert len(folders["table1_tiny_all"] & folders[world]) == 5 * lines
    assert not folders["distribution_fresh"] & folders["distribution_tiny"]
    assert len({cell.benchmark.label for cell in planned["table1_7b"]}) == 3
    full = {cell.folder for cell in planned["table1_7b"] if cell.line.method == "align_opsd" and cell.seed == 0}
    for name in ("ablation_7b", "sensitivity_7b"):
        assert len(folders[name] & full) == 1, "AlignOPSD on WebShop is one cell of all three"
    assert [cell.benchmark.label for cell in planned["sensitivity_3b"]] == ["ALFWorld"] * 7 + ["WebShop"] * 7
    assert all(cell.config["eval_strategy"] == "steps" for cell in planned["ablation_7b"])


def test_the_page_names_each_shipped_study_with_its_number_of_runs() -> None:
    page = (HERE.parent / "docs" / "studies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \| .* \| ([^|]+) \|$", page.partition("## The file")[0], re.MULTILINE)
    told = {name: runs for names, runs in rows for name in re.findall(r"`(\w+)`", names)}
    for path in SHIPPED.glob("*.yaml"):
        trainings = sum(cell.trains for cell in plan(read_study(path)))
        assert str(trainings) in re.findall(r"\d+", told[path.stem]), path.stem


@pytest.mark.parametrize("size", ["3b", "7b"])
def test_table1_does_not_begin_without_the_benchmarks_data(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(
        StudyError, match=r"(?s)ALFWorld lacks.*alfworld-download.*Search-QA lacks.*nq_hotpotqa_train"
    ) as found:
        main([str(SHIPPED / f"table1_{size}.yaml")])
    assert "WebShop lacks the benchmark's own data: data_dir 'data/webshop' is not a folder" in str(found.value)
    assert not (tmp_path / "outputs").exists()
    assert main([str(SHIPPED / "ablation_7b.yaml"), "--plan"]) == 0
    assert "6 cells" in (printed := capsys.readouterr().out) and "items_ins_v2.json" in printed


def test_a_study_that_asks_for_the_benchmarks_data_refuses_those_of_this_project(tmp_path: Path) -> None:
    study = read_study(study_of(tmp_path, environments=["webshop_7b", "searchqa_hops"], official_data=True))
    first, second = missing_data(study)
    assert first.startswith("WebShop lacks the benchmark's own data: it would play this project's; download WebShop's")
    assert second == "Search-QA lacks the benchmark's own data: it would play this project's"
    assert missing_data(replace(study, official_data=False)) == []


# ---------------------------------------------------------------------- running

STAND_IN = """
import json, os, shutil, sys
from pathlib import Path
folder = Path(sys.argv[-1])
cell = json.loads((folder / "cell.json").read_text())
with open(sys.argv[1], "a") as log:
    log.write(json.dumps([cell["config"]["method"], cell["config"]["seed"], sorted(os.sched_getaffinity(0)),
                          os.environ["OMP_NUM_THREADS"], os.environ.get("CUDA_VISIBLE_DEVICES")]) + chr(10))
if cell["config"]["method"] == "rlsd" and not Path(sys.argv[1]).with_name("mended").exists():
    sys.exit("ValueError: out of luck")
shutil.copy(Path(__file__).with_name("row.parquet"), folder / "row.part")
(folder / "row.part").replace(folder / "row.parquet")  # at once, as a cell does: others are collected meanwhile
"""


def stand_in(folder: Path, **content: Any) -> tuple[Path, Path]:
    """A study whose training cells run a script of a few lines; the second path logs their starts."""
    (folder / "cell.py").write_text(STAND_IN)
    write_records(folder / "row.parquet", [{"score": 50.0, "with_skills": False}])
    launcher = [sys.executable, "-I", str(folder / "cell.py"), str(folder / "starts")]
    return study_of(folder, launcher=launcher, **content), folder / "starts"


def starts(log: Path) -> list[list[Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_finished_cells_never_run_again_and_a_broken_one_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = stand_in(tmp_path, methods=["grpo", "rlsd", "sdar"])
    study = read_study(path)
    cells = plan(study)
    errors = run_study(study, cells)
    assert set(errors) == {cell.folder for cell in cells if cell.line.method == "rlsd"}
    assert all("out of luck" in text and "exit status 1" in text for text in errors.values())
    printed = capsys.readouterr().out
    assert printed.count("BROKEN") == 2 and printed.count("finished: ") == 4 and "(6 of 6 cells ended)" in printed
    rows = read_rows(study.output / "rows.parquet")
    assert sorted(rows["status"]) == ["broken"] * 2 + ["finished"] * 4
    (tmp_path / "mended").touch()
    assert run_study(study, cells) == {}
    assert sorted(method for method, *_ in starts(log)) == ["grpo"] * 2 + ["rlsd"] * 4 + ["sdar"] * 2
    assert list(read_rows(study.output / "rows.parquet")["status"]) == ["finished"] * 6
    wider = replace(study, seeds=(0, 1, 2))
    run_study(wider, plan(wider))
    assert len(starts(log)) == 8 + 3


def test_what_needs_a_broken_checkpoint_is_reported_not_run(tmp_path: Path) -> None:
    lines = ["rlsd", {"method": "rlsd", "skills": True}]
    path, log = stand_in(tmp_path, methods=lines, seeds=[0])
    errors = run_study(read_study(path), cells := plan(read_study(path)))
    assert "needs" in errors[cells[1].folder] and len(starts(log)) == 1


def test_processes_get_cores_of_their_own(tmp_path: Path) -> None:
    available = sorted(os.sched_getaffinity(0))
    assert sum(split_cores(1), []) == available
    with pytest.raises(StudyError, match=f"{len(available)} cores"):
        split_cores(len(available) + 1)
    count = min(2, len(available))
    path, log = stand_in(tmp_path, methods=["grpo", "sdar"], processes=count, devices=list("ab")[:count])
    run_study(read_study(path), plan(read_study(path)))
    used = {(tuple(cores), threads, device) for _, _, cores, threads, device in starts(log)}
    expected = [(tuple(part), str(len(part)), "ab"[place]) for place, part in enumerate(split_cores(count))]
    assert used <= set(expected) and len(starts(log)) == 4
    fewer = replace(read_study(path), processes=1, seeds=(2,))
    run_study(fewer, plan(fewer))
    assert [(cores, device) for _, _, cores, _, device in starts(log)[4:]] == [(available, "a")] * 2
    assert sorted(os.sched_getaffinity(0)) == available


def test_one_study_at_a_time_on_the_same_cells(tmp_path: Path) -> None:
    path, log = stand_in(tmp_path)
    study = read_study(path)
    with _only_one(study.cells), pytest.raises(StudyError, match=rf"\(process {os.getpid()} on "):
        run_study(study, plan(study))
    assert not log.exists()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with _only_one(study.cells):
        (study.cells / "lock").write_text(f"process {ended.pid} on {socket.gethostname()}\n")
        with pytest.raises(StudyError, match=rf"was killed \(process {ended.pid} on .*its cells still run: wait"):
            run_study(study, plan(study))


# ---------------------------------------------------------------------- rows of a run


def test_curves_and_phases_come_from_the_log() -> None:
    log = [
        {"step": 1, "episodes/success": 0.25, "reward": 0.25, "seconds/rollout": 2.0, "seconds/scoring": 1.0},
        {"step": 2, "episodes/success": 0.5, "reward": 0.5, "seconds/rollout": 4.0, "seconds/scoring": 1.0}
        | {"seconds/update": 0.5},
        {"step": 2, "train_loss": 0.0},
    ]
    row = training_columns(log)
    assert row["updates"] == 2 and row["curve_update"] == [1, 2] and row["curve_success"] == [0.25, 0.5]
    assert (row["seconds/rollout"], row["seconds/scoring"], row["seconds/update"]) == (3.0, 1.0, 0.5)
    assert row["seconds"] == 4.5 and row["curve_entropy"] == [None, None]


def test_task_order_is_that_of_the_rounds(tmp_path: Path) -> None:
    def played(name: str, *rounds: list[str]) -> str | None:
        for step, tasks in enumerate(rounds):
            records = [{"step": step, "task_id": task} for task in tasks for _ in range(3)]
            write_records(tmp_path / name / f"step_{step:06d}_rank000.parquet", records)
        return task_order(tmp_path / name)

    assert played("a", ["x", "y"], ["z"]) == played("b", ["x", "y"], ["z"]) != played("c", ["y", "x"], ["z"])
    assert task_order(tmp_path / "nothing") is None


def test_weights_have_a_checksum(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a" * 100)
    first = weights_checksum(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"a" * 99 + b"b")
    assert weights_checksum(str(tmp_path)) != first and weights_checksum("some/model") == "some/model"


# ---------------------------------------------------------------------- statistics and tables


def test_intervals_are_students_and_differences_are_paired_by_seed() -> None:
    one = mean([1.0, 2.0, 3.0])
    assert one.value == 2.0 and one.half == pytest.approx(4.302653 / 3**0.5, abs=1e-5)
    assert str(mean([5.0])) == "5.0"
    with pytest.raises(ValueError, match="at least one"):
        mean([])
    difference = paired({0: 10.0, 1: 20.0, 2: 33.0}, {1: 15.0, 2: 30.0, 3: 1.0})
    assert (difference.value, difference.count) == (4.0, 2)
    assert difference.half == pytest.approx(12.7062 * 1.0, abs=1e-3)
    assert paired({0: 1.0}, {1: 1.0}) is None


def row(label: str, seed: int, score: float, position: int, table: str = "methods", **more: Any) -> dict[str, Any]:
    place = {"table": table, "position": position, "label": label, "value": more.pop("value", None)}
    return {
        "status": "finished",
        "environment": "WebShop",
        "method": label.lower(),
        "label": label,
        "seed": seed,
        "settings": "{}",
        "places": json.dumps([place]),
        "columns": json.dumps({"categories": ["shoes"], "averages": {"score": "Score", "success": "Acc"}}),
        "folder": f"{label}{seed}",
        "with_skills": False,
        "score": score,
        "success": score / 2,
        "category_names": ["coats", "shoes"],
        "category_success": [score, score + 1],
        "suite_categories": ["coats", "never", "shoes"],
        "weights": "w",
        "panel_checksum": "p",
        "code": "c",
        "versions": "{}",
        "machine": "{}",
        "protocol": json.dumps({"beta": 0.0}),
        "updates": 3,
        "trajectories": 24,
        "task_order": f"order{seed}",
        "curve_update": [1, 2, 3],
        "curve_success": [0.1 * seed, 0.2, score / 100],
    } | more


def example() -> pd.DataFrame:
    rows = [row("GRPO", seed, 50.0 + seed, 0) for seed in range(3)]
    rows += [row("SDAR", seed, 60.0 + 2 * seed, 1) for seed in range(3)]
    rows += [row("RLSD", seed, 62.04 if seed else 61.92, 2) for seed in range(3)]
    empty = {"category_names": ["coats"], "category_success": [1.0]}
    vanilla = [row("Vanilla", seed, 1.0, 3, **empty) for seed in range(3)]
    untrained = ("updates", "trajectories", "task_order", "curve_update", "curve_success")
    rows += [{name: None if name in untrained else value for name, value in one.items()} for one in vanilla]
    broken = {name: row("OPSD", 0, 0.0, 4)[name] for name in (*list(row("OPSD", 0, 0.0, 4))[:9],)}
    rows.append(broken | {"status": "broken", "error": "ValueError: no"})
    return pd.DataFrame(rows)


def table_cells(table: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {line[0]: line[1:] for line in lines}


def test_table_marks_best_and_second_and_leaves_empty_categories_empty() -> None:
    table = table_cells(results_table(example(), "methods"))
    assert table["WebShop"] == ["shoes", "coats", "never", "Score", "Acc", "seeds"]
    assert list(table)[2:] == ["GRPO", "SDAR", "RLSD", "Vanilla", "OPSD"]
    assert table["GRPO"][3] == "<u>51.0 ± 2.5</u>" and table["SDAR"][3] == "**62.0 ± 5.0**"
    assert table["RLSD"][3].startswith("**62.0"), "equal as printed: equal mark"
    assert table["GRPO"][1] == "<u>51.0 ± 2.5</u>" and table["Vanilla"][3] == "1.0 ± 0.0", "the third has no mark"
    assert [cells[2] for name, cells in table.items() if name not in ("WebShop", "---")] == [""] * 5
    assert table["Vanilla"][0] == "" and table["Vanilla"][1].startswith("1.0")
    assert table["OPSD"] == ["", "", "", "", "", "0"]


def test_differences_are_against_the_reference() -> None:
    rows = example()
    reference = reference_entry(rows, "grpo")
    table = table_cells(differences_table(rows, "methods", reference))
    assert table["minus GRPO"] == ["Score", "Acc"] and "GRPO" not in table
    assert table["SDAR"] == ["+11.0 ± 2.5", "+5.5 ± 1.2"] and table["OPSD"] == ["", ""]
    assert reference_entry(rows, "gigpo") is None


def test_a_broken_protocol_is_said() -> None:
    rows = example()
    assert not any("DIFFER" in line for line in matched(rows))
    rows.loc[1, "weights"] = "other"
    rows.loc[4, "task_order"] = "other"
    rows.loc[5, "updates"] = 4
    rows.loc[6, "protocol"] = json.dumps({"beta": 0.1})
    text = "\n".join(matched(rows))
    for part in ("weights DIFFER: w, but not in GRPO seed 1", "DIFFERS between methods for seeds [1]", "beta"):
        assert part in text
    assert "updates DIFFER: 3, but not in SDAR seed 2" in text


def with_sweep() -> pd.DataFrame:
    points = [
        row("AlignOPSD", seed, 70.0 + value + seed, place, "sweep max_sources", value=value)
        for seed in range(2)
        for place, value in enumerate((2, 3, 4))
    ]
    return pd.concat([example(), pd.DataFrame(points)], ignore_index=True)


@pytest.mark.parametrize(
    ("suite", "facts", "embedded"),
    [
        ("webshop", {"data": "embedded catalogue"}, True),
        ("webshop", {"data": "official files"}, False),
        ("alfworld", {"games": "generated"}, True),
        ("alfworld", {"games": "official"}, False),
        ("searchqa", {"data": "closed_world"}, True),
        ("searchqa", {"data": "data/searchqa"}, False),
        ("searchqa_hops", {"data": "elsewhere"}, True),
        ("a_users_own", {}, False),
    ],
)
def test_columns_of_this_projects_data_say_so(suite: str, facts: dict, embedded: bool) -> None:
    rows = example().assign(suite=suite, suite_facts=json.dumps(facts))
    mark = "embedded " if embedded else ""
    table = table_cells(results_table(rows, "methods"))
    assert table["WebShop"] == [*(f"{mark}{name}" for name in ("shoes", "coats", "never", "Score", "Acc")), "seeds"]
    assert table["GRPO"][3] == "<u>51.0 ± 2.5</u>"
    differences = table_cells(differences_table(rows, "methods", reference_entry(rows, "grpo")))
    assert differences["minus GRPO"] == [f"{mark}Score", f"{mark}Acc"]


def test_evaluations_in_training_are_curves_of_their_own() -> None:
    log: list[dict[str, Any]] = [{"step": 1, "episodes/success": 0.5}, {"step": 2, "episodes/success": 0.5}]
    log.append({"step": 2, "eval_episodes/success": 0.25, "eval_episodes/score": 0.5})
    found = training_columns(log)
    assert (found["validation_update"], found["validation_success"]) == ([2], [0.25])
    assert found["validation_score"] == [0.5] and found["curve_update"] == [1, 2]
    assert "validation_update" not in training_columns(log[:2])
    rows = with_sweep()
    assert training_figure(rows, "sweep max_sources", "validation") is None
    points = [[10, 20]] * len(rows)
    rows = rows.assign(
        validation_update=points, validation_success=[[0.1, 0.1 + score / 1000] for score in rows["score"]]
    )
    axis = training_figure(rows, "sweep max_sources", "validation").axes[0]
    assert axis.get_ylabel() == "validation success (%)"
    assert [[*line.get_xdata()] for line in axis.lines] == [[10, 20]] * 3
    assert [line.get_ydata()[0] for line in axis.lines] == [pytest.approx(10.0)] * 3


def test_everything_is_rendered_from_the_rows_alone(tmp_path: Path) -> None:
    write_records(
        tmp_path / "rows.parquet", with_sweep().astype(object).where(with_sweep().notna(), None).to_dict("records")
    )
    path = render("example", read_rows(tmp_path / "rows.parquet"), tmp_path)
    text = path.read_text()
    for part in ("## Methods", "minus GRPO", "## Sensitivity to max_sources", "OPSD seed 0: ValueError: no"):
        assert part in text
    assert "## Ablations" not in text and "nan" not in text.lower()
    for name in re.findall(r"\((figures/\w+)\.png\)", text):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
    assert {file.name for file in (tmp_path / "figures").glob("[!.]*")} == {
        f"{name}.{kind}"
        for name in ("training_methods", "differences_methods", "sensitivity")
        for kind in ("png", "svg")
    }
    drawn = (tmp_path / "figures" / "training_methods.svg").read_text()
    assert "SDAR" in drawn and "Vanilla" not in drawn
    render("example", read_rows(tmp_path / "rows.parquet"), tmp_path)
    assert (tmp_path / "figures" / "training_methods.svg").read_text() == drawn


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "rows.parquet is damaged"),
        (b"PAR1", "rows.parquet is damaged"),
        ([], "as a study"),
        ([{"a": 1}], "as a s"),
    ],
)
def test_damaged_rows_are_named(tmp_path: Path, content: Any, told: str) -> None:
    file = tmp_path / "rows.parquet"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        write_records(file, content)
    with pytest.raises((Damaged, StudyError), match=f"{told}.*move it away"):
        read_rows(file)
    cell: Any = SimpleNamespace(row_file=file, folder=tmp_path, columns={})
    with pytest.raises((Damaged, StudyError), match=f"{told}.*move it away"):
        collect([cell], {})


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not written, which takes seconds."""
    monkeypatch.setattr("alignopsd_trl.commands.study.render.save", lambda figure, path: None)


@pytest.mark.usefixtures("undrawn")
def test_foreign_text_stays_text_in_the_tables(tmp_path: Path) -> None:
    hostile = "a|b\n<script>alert(1)</script> `x`"
    rows = example().assign(environment=hostile)
    rows["error"] = rows["error"].where(rows["error"].isna(), hostile)
    rows["places"] = [text.replace("OPSD", json.dumps(hostile)[1:-1]) for text in rows["places"]]
    text = render(hostile, rows, tmp_path).read_text()
    assert "<script>" not in text and text.startswith(r"# a\|b &lt;script&gt;alert(1)&lt;/script&gt; \`x\`" + "\n")
    widths = [[len(re.findall(r"(?<!\\)\|", line)) for line in part.splitlines()] for part in text.split("\n\n")]
    assert all(len(set(one)) == 1 for one in widths if one[0] > 2)


def test_places_are_checked_before_a_study_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("output", "cells"):
        path = study_of(tmp_path, **{name: str(tmp_path / "file" / "below")})
        fails(["study", str(path), "--plan"], f"{name}=", "is a file; choose another folder", capsys=capsys)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.md").write_text("mine")
    for flags in (["--plan"], []):
        told = "out/results.md is there, and is not as alignopsd study wrote it"
        fails(["study", str(study_of(tmp_path)), *flags], told, capsys=capsys)
    assert (tmp_path / "out" / "results.md").read_text() == "mine"


def test_a_full_disk_ends_a_study_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out").mkdir()
    monkeypatch.setattr("alignopsd_trl.commands.study.run.write_json", full)
    words = "no room for the study's files", "same command goes on"
    fails(["study", str(study_of(tmp_path))], *words, capsys=capsys, status=1, lines=2)


def _cells(page: str) -> list[list[str]]:
    lines = re.sub(r"\*\*|</?u>", "", page).splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("| ")]


@pytest.mark.usefixtures("undrawn")
def test_given_rows_are_rendered_and_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Path(__file__).parents[2] / "research" / "results" / "tiny" / "table1_tiny.parquet"
    shutil.copy(kept, tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    assert main([str(SHIPPED / "table1_tiny.yaml"), "--rows", str(tmp_path / "rows.parquet")]) == 0
    published = _cells((kept.parents[2] / "results.md").read_text(encoding="utf-8"))
    methods, _, rest = (tmp_path / "results.md").read_text(encoding="utf-8").partition("| minus GRPO |")
    success = {label: cells[-2] for label, *cells in _cells(methods) if cells[-1] == "3"}
    minus = {label: cells[-1] for label, *cells in _cells(rest.partition("## ")[0]) if label in success}
    shown = {label: cells[:2] for label, *cells in published if label in success and len(cells) == 5}
    assert len(success) == 12 and len(minus) == 11
    assert shown == {label: [one, minus.get(label, "")] for label, one in success.items()}, "the page shows the rows"
    assert not (tmp_path / "outputs").exists()


def test_figures_show_means_over_seeds() -> None:
    figure = training_figure(example(), "methods")
    (axis,) = figure.axes
    line = next(line for line in axis.lines if line.get_label() == "GRPO")
    assert list(line.get_xdata()) == [1, 2, 3] and line.get_ydata()[0] == pytest.approx(10.0)
    assert len(axis.lines) == 3, "only what was trained"
    figure = sensitivity_figure(with_sweep(), reference_entry(with_sweep(), "grpo"))
    points = figure.axes[0].lines[0]
    assert list(points.get_xdata()) == [2, 3, 4] and list(points.get_ydata()) == [72.5, 73.5, 74.5]
    assert sensitivity_figure(example()) is None


def test_differences_have_a_panel_a_method_paired_by_seed() -> None:
    rows = example()
    moved = (rows["label"] == "SDAR") & (rows["seed"] == 1)
    rows.loc[moved, "curve_success"] = rows.loc[moved, "curve_success"].map(lambda curve: [one + 0.3 for one in curve])
    figure = difference_figure(rows, "methods", reference_entry(rows, "grpo"))
    titles = [axis.get_title() for axis in figure.axes]
    assert len(titles) == 2 and "SDAR" in titles[0] and "RLSD" in titles[1], "only what was trained, not the reference"
    assert "+11.0 ± 2.5" in titles[0]
    *seeds, zero, mean = figure.axes[0].lines
    assert [line.get_ydata()[0] for line in seeds] == pytest.approx([0.0, 30.0, 0.0])
    assert list(mean.get_xdata()) == [1, 2, 3] and mean.get_ydata()[0] == pytest.approx(10.0)
    assert difference_figure(rows, "ablations", reference_entry(rows, "grpo")) is None
    assert difference_figure(rows, "methods", None) is None


# ---------------------------------------------------------------------- the real thing

SUITE = """
from fakes.toy import ToyEnvironment, toy_dataset
from alignopsd_trl.environments import Suite, TaskPanel


def suite(**options):
    panel = TaskPanel.of("toy", "test", list(toy_dataset(12)))
    names = ("even", "odd", "never")
    return Suite("toy", ToyEnvironment, lambda split: toy_dataset(), lambda name: panel, names, options, "webshop")
"""


@pytest.mark.full
def test_two_real_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path / "policy")
    build_model(tokenizer).save_pretrained(tmp_path / "policy")
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "__init__.py").touch()
    (tmp_path / "toys" / "suite.py").write_text(SUITE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(HERE), str(HERE.parent)]))
    settings = {"model_name_or_path": str(tmp_path / "policy"), "tasks_per_round": 2, "num_generations": 4}
    settings |= {"rounds": 2, "max_prompt_length": 128, "max_completion_length": 12, "skill_tokens": 30}
    benchmark = {"recipe": "webshop_tiny", "label": "Toy", "settings": {"environment": "toys.suite", "panel_limit": 6}}
    path = study_of(
        tmp_path,
        environments=[benchmark],
        settings=settings | {"environment_options": {"level": 3}},
        methods=["skill_prompt", {"method": "align_opsd", "settings": {"max_sources": 2}}],
        seeds=[3],
        processes=min(2, len(os.sched_getaffinity(0))),
    )
    assert main([str(path)]) == 0
    rows = {one["method"]: one for one in pq.read_table(tmp_path / "out" / "rows.parquet").to_pylist()}
    trained, prompted = rows["align_opsd"], rows["skill_prompt"]
    assert (trained["updates"], trained["trajectories"], trained["curve_update"]) == (2, 16, [1, 2])
    assert json.loads(trained["config"])["max_sources"] == 2 and json.loads(trained["config"])["seed"] == 3
    assert (prompted["with_skills"], trained["with_skills"]) == (True, False)
    assert prompted["seconds"] is None and prompted["updates"] is None
    assert all(trained[f"seconds/{phase}"] > 0 for phase in ("rollout", "scoring", "update", "privileged_thinking"))
    assert json.loads(trained["suite_facts"]) == {"level": 3} and len(trained["task_won"]) == 6
    lines = matched(pd.DataFrame(list(rows.values())))
    assert not any("DIFFER" in line and "code" not in line for line in lines), "code may be edited while tests run"
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "cells").rglob("row.parquet")}
    assert len(written) == 2
    capsys.readouterr()
    assert main([str(path)]) == 0 and main([str(path), "--plan"]) == 0
    assert "2 cells, 2 finished" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in written} == written
