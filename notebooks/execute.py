"""Runs the notebooks where they lie and keeps their outputs, with small pictures.

    python notebooks/execute.py [NAME ...]        all, or quickstart, reading_a_run, ...

The notebook's metadata say from which cells and which version of the package the outputs are; a test compares them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COLOURS = 32  # of a picture
LONGEST = 40_000  # characters of a page that a cell shows; a longer one, such as the viewer's, is left out
LEFT_OUT = "(a page that is too long to be kept: run the cell)"


def made_of(cells: Sequence[Any]) -> dict[str, str]:
    """Returns what outputs depend on: the sources of the code cells, as a checksum, and the package's version."""
    sources = "\0".join(cell.source for cell in cells if cell.cell_type == "code")
    return {"version": version("alignopsd-trl"), "sources": hashlib.sha256(sources.encode()).hexdigest()[:16]}


def execute(path: Path) -> None:
    """Runs a notebook and writes it with its outputs."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(HERE)}}
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources=place, record_timing=False, coalesce_streams=True
    ).execute()
    make_small(notebook)
    notebook.metadata["made_of"] = made_of(notebook.cells)
    nbformat.write(notebook, path)


def make_small(notebook: Any) -> None:
    """Leaves out warnings, which name places on this machine, and shrinks the other outputs."""
    for cell in (one for one in notebook.cells if one.cell_type == "code"):
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
        for output in cell.outputs:
            _shrink(output.get("data", {}))


def _shrink(data: dict[str, Any]) -> None:
    from PIL import Image

    data.pop("application/vnd.jupyter.widget-view+json", None)
    if "image/png" in data:
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB").quantize(COLOURS)
        small = io.BytesIO()
        picture.save(small, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(small.getvalue()).decode()
    if len(data.get("text/html", "")) > LONGEST:
        del data["text/html"]
        data["text/plain"] = LEFT_OUT


if __name__ == "__main__":
    for one in sys.argv[1:] or sorted(file.stem for file in HERE.glob("*.ipynb")):
        execute(HERE / f"{one}.ipynb")
        print(f"{one}: {(HERE / f'{one}.ipynb').stat().st_size / 1000:.0f} kB", flush=True)
