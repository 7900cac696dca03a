"""The Python of the README and of docs/your_own_task.md runs as it stands, from a folder outside the repository."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_readme_trains_and_evaluates_on_a_laptop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("README.md", "python")
    names: dict[str, object] = {}
    exec(compile(snippet, "README.md", "exec"), names)
    assert names["trainer"].state.global_step == 2
    assert "success %" in capsys.readouterr().out
    assert (tmp_path / "outputs" / "first_run" / "trajectories").is_dir()


PAGE = "docs/your_own_task.md"
SMALL = ["--rounds", "1", "--tasks_per_round", "2", "--panel_limit", "4", "--disable_tqdm", "True"]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page in a folder of their own, which is where the user stands."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    named = r"`(seek\w*\.\w+|train_seek\.py)`:[^\n]*\n\n```\w+\n(.*?)^```"
    files = re.findall(named, text, re.MULTILINE | re.DOTALL)
    names = ["seek.py", "seek_skills.json", "seek_hints.py", "train_seek.py", "seek_study.yaml"]
    assert [name for name, _ in files] == names
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("seek", "train_seek")):
            del sys.modules[name]
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


def test_task_of_ones_own_trains_from_outside_the_repository(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.launch.evaluate import main as evaluation
    from alignopsd_trl.launch.recipe import main

    results = main("train_seek", [*SMALL, "--output_dir", "outputs/seek"])
    (first,) = [entry for entry in results["history"] if "episodes/success" in entry]
    assert first["stop/environment_error"] == 0 and first["turns/invalid_actions"] < 1
    assert first["episodes/skill_items"] > 0 and results["after"]["environment"] == "seek"
    for column in re.findall(r"^\| (`[^|]*`) \|", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`([\w/]+)`", column):
            assert name in first, f"{PAGE} explains {name}, which is not in the log"
    last = blocks(PAGE, "python")[-1]
    exec(compile(last, PAGE, "exec"), {})
    assert "credit_weight" in capsys.readouterr().out
    sizes = ["--limit", "4", "--max_prompt_length", "384", "--max_completion_length", "48"]
    played = evaluation(["--model", "outputs/seek", "--environment", "seek", "--skills", *sizes])
    assert played.episodes == 4 and played.environment_errors == 0


def test_study_of_ones_own_is_planned_and_a_function_gives_skills(own_folder: Path) -> None:
    from alignopsd_trl.launch.recipe import main
    from alignopsd_trl.study.planning import plan
    from alignopsd_trl.study.spec import read_study

    cells = plan(read_study("seek_study.yaml"))
    assert [cell.line.method for cell in cells] == ["vanilla", "grpo", "align_opsd"]
    assert {cell.benchmark.label for cell in cells} == {"Seek"} and cells[0].columns["environment"] == "Seek"
    hints = ["--method", "skill_grpo", "--skill_bank", "seek_hints:hint", "--evaluate_first", "False"]
    results = main("train_seek", [*SMALL, *hints, "--output_dir", "outputs/hints"])
    (first,) = [entry for entry in results["history"] if "episodes/success" in entry]
    assert first["episodes/skill_items"] == 1.0


@pytest.mark.slow
def test_study_of_ones_own_runs(own_folder: Path) -> None:
    from alignopsd_trl.study.__main__ import main

    assert main(["seek_study.yaml"]) == 0
    assert "AlignOPSD" in (own_folder / "outputs" / "seek_study" / "results.md").read_text(encoding="utf-8")


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "research").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text(encoding="utf-8")):
            there = re.match(r"[a-z]+:", link) or (page.parent / link).exists()
            assert there, f"{page.relative_to(ROOT)} links to {link}, which is not there"


def test_method_page_names_functions_that_are_where_it_says() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \w+ \(`(\w+)\.py`\)\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert [room for room, _ in sections] == ["correspondence", "rectification", "spans", "credit"]
    for room, table in sections:
        module = importlib.import_module(f"alignopsd_trl.methods.align_opsd.{room}")
        named = [
            name for row in re.findall(r"\| ([^|]*) \|$", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
        ]
        elsewhere = {"TurnBatch.of", "TurnBatch.groups", "rollout_advantage", "token_advantages"}
        missing = [name for name in named if name not in elsewhere and not hasattr(module, name)]
        assert not missing, f"docs/method.md: {room}.py has no {', '.join(missing)}"
