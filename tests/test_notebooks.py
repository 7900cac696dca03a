"""The notebooks run from top to bottom, and each ends in a figure."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

nbformat = pytest.importorskip("nbformat", reason='pip install "alignopsd-trl[notebooks]"')
nbclient = pytest.importorskip("nbclient", reason='pip install "alignopsd-trl[notebooks]"')

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def executed(path: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> list:
    """Its code cells after each was run twice in a row, in the notebook's own folder as Jupyter does."""
    for name, value in {"ROUNDS": "1", "TASKS": "6", **settings}.items():
        monkeypatch.setenv(f"NOTEBOOK_{name}", value)
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit notebooks without their outputs"
    notebook.cells = [deepcopy(cell) for cell in notebook.cells if cell.cell_type == "code" for _ in range(2)]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    place = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    return notebook.cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_twice_in_a_row(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = executed(path, monkeypatch)
    shown = [output for output in cells[-1].outputs if "image/png" in output.get("data", {})]
    assert shown, f"{path.name} does not end in a figure"


def test_the_quickstart_takes_a_model_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from alignopsd_trl.models import resolve_model

    path = next(path for path in NOTEBOOKS if path.stem == "quickstart")
    executed(path, monkeypatch, MODEL=str(resolve_model("tiny")), TASKS="2")
