"""The notebooks run from top to bottom, and each ends in a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason='pip install "alignopsd-trl[notebooks]"')
nbclient = pytest.importorskip("nbclient", reason='pip install "alignopsd-trl[notebooks]"')

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where notebooks find a run, or make it: the first that needs one does."""
    return tmp_path_factory.mktemp("outputs") / "webshop_tiny"


def executed(path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> list:
    for name, value in {"ROUNDS": "1", "TASKS": "6", "RUN": str(run), **settings}.items():
        monkeypatch.setenv(f"NOTEBOOK_{name}", value)
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit notebooks without their outputs"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = executed(path, run, monkeypatch)
    shown = [output for output in cells[-1].outputs if "image/png" in output.get("data", {})]
    assert shown, f"{path.name} does not end in a figure"


def test_the_quickstart_takes_a_model_of_ones_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alignopsd_trl.policy.shipped import resolve_model

    path = next(path for path in NOTEBOOKS if path.stem == "quickstart")
    executed(path, run, monkeypatch, MODEL=str(resolve_model("tiny")), TASKS="2")
