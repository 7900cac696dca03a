"""The Python of the README runs as it stands, from a folder outside the repository; the page on own tasks is true."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.full
def test_readme_trains_and_evaluates_on_a_laptop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("README.md", "python")
    names: dict[str, Any] = {}
    exec(compile(snippet, "README.md", "exec"), names)
    assert names["trainer"].state.global_step == 2
    assert "success %" in capsys.readouterr().out
    assert (tmp_path / "outputs" / "first_run" / "trajectories").is_dir()


PAGE = "docs/your_own_task.md"
SMALL = ["--rounds", "1", "--tasks_per_round", "2", "--panel_limit", "4", "--disable_tqdm", "True"]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the page's first command writes, which is where the user stands."""
    from alignopsd_trl.cli import main

    monkeypatch.chdir(tmp_path)
    main(["new", "maze", "--model", "tiny"])
    monkeypatch.chdir(tmp_path / "maze")
    before = set(sys.modules)
    yield tmp_path / "maze"
    for name in set(sys.modules) - before:
        if name.startswith(("maze", "train")):
            del sys.modules[name]
    sys.path[:] = [place for place in sys.path if not place.startswith(str(tmp_path))]


@pytest.mark.slow
def test_the_log_and_the_records_have_what_the_pages_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alignopsd_trl.launch.recipe import main

    monkeypatch.chdir(tmp_path)
    results = main("webshop_tiny", [*SMALL, "--tasks_per_round", "8", "--output_dir", "outputs/webshop_tiny"])
    (first,) = [entry for entry in results["history"] if "episodes/success" in entry]
    for column in re.findall(r"^\| (`[a-z]+/[^|]*`[^|]*) \|", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`([\w/]+)`", column):
            assert name in first, f"{PAGE} explains {name}, which is not in the log"
    (reading,) = [block for block in blocks("docs/runs.md", "python") if "read_records" in block]
    exec(compile(reading, "docs/runs.md", "exec"), read := {})
    assert len(read["turns"]) and "credit_weight" in read["turns"]


def test_the_study_of_ones_own_is_planned(own_folder: Path) -> None:
    from alignopsd_trl.study.spec import plan, read_study

    cells = plan(read_study("study.yaml"))
    assert [cell.line.method for cell in cells] == ["vanilla", "grpo", "align_opsd"]
    assert {cell.benchmark.label for cell in cells} == {"Maze"}


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
