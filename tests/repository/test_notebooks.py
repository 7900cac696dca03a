"""The notebooks run from top to bottom where there is no repository, as on Colab, and each ends in a figure. The
committed outputs are those of the present cells."""

from __future__ import annotations

import json
import os
import runpy
from copy import deepcopy
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason='pip install "alignopsd-trl[notebooks]"')
nbclient = pytest.importorskip("nbclient", reason='pip install "alignopsd-trl[notebooks]"')

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


MAKES_A_RUN = """#!/bin/sh
for folder; do :; done
mkdir -p "$(dirname "$folder")" && cp -r "{kept}/$(basename "$folder")" "$folder"
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an `alignopsd train ... --output_dir FOLDER` that gives the kept run of that name."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "alignopsd"
    command.write_text(MAKES_A_RUN.format(kept=NOTEBOOKS[0].parent / "runs"))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def executed(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, times: int = 1, **settings: str) -> list:
    """Its code cells after each was run once, or several times in a row, in a folder."""
    for name, value in {"ROUNDS": "1", "TASKS": "6", **settings}.items():
        monkeypatch.setenv(f"NOTEBOOK_{name}", value)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [deepcopy(cell) for cell in notebook.cells if cell.cell_type == "code" for _ in range(times)]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    return notebook.cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_committed_and_of_the_present_cells(path: Path) -> None:
    made_of = runpy.run_path(str(path.with_name("execute.py")), run_name="execute")["made_of"]
    notebook = nbformat.read(path, as_version=4)
    told = f"python notebooks/execute.py {path.stem}"
    assert notebook.metadata.get("made_of") == made_of(notebook.cells), told
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), f"{told} runs each cell once"
    outputs = [output for cell in code for output in cell.outputs]
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    for cell in code:
        shows = cell.source.rstrip().splitlines()[-1].split("(")[0] in ("print", "plt.show")
        assert cell.outputs or not shows, cell.source
    assert "image/png" in code[-1].outputs[-1].data and path.stat().st_size < 150_000
    assert str(path.parents[1]) not in json.dumps(outputs), "an output names a place on this machine"


def test_an_edited_cell_makes_outputs_old_and_an_edited_text_does_not() -> None:
    made_of = runpy.run_path(str(NOTEBOOKS[0].with_name("execute.py")), run_name="execute")["made_of"]
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    kept = made_of(notebook.cells)
    next(cell for cell in notebook.cells if cell.cell_type == "markdown").source += " More words."
    assert made_of(notebook.cells) == kept
    next(cell for cell in notebook.cells if cell.cell_type == "code").source += "\nprint(1)"
    assert made_of(notebook.cells) != kept


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the notebook that trains an environment of the user's, twice in a row."""
    cells = executed(path, elsewhere, monkeypatch, times=2 if path.stem == "your_environment" else 1)
    shown = [output for output in cells[-1].outputs if "image/png" in output.get("data", {})]
    assert shown, f"{path.name} does not end in a figure"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_brings_what_a_lone_notebook_needs(path: Path) -> None:
    first = next(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert '    %pip install -q "alignopsd-trl[studies]"' in first
    known = (path.parent / "runs" / "README.md").read_text(encoding="utf-8").replace("outputs/", "runs/").splitlines()
    asked = [line.strip().removeprefix("!") for line in first.splitlines() if "!alignopsd" in line]
    assert set(asked) <= set(known), "notebooks/runs was made by other commands"


@pytest.mark.full
def test_the_quickstart_takes_a_model_of_ones_own(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alignopsd_trl.common.models import resolve_model

    path = next(path for path in NOTEBOOKS if path.stem == "quickstart")
    executed(path, elsewhere, monkeypatch, MODEL=str(resolve_model("tiny")), TASKS="2")
