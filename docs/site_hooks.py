"""Hooks of the documentation site: the README as its first page, a page of the notebooks, links that leave `docs/`, the
table of settings."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
REPOSITORY = os.environ.get("ALIGNOPSD_REPOSITORY", "").rstrip("/")
GITHUB, COLAB = "https://github.com/", "https://colab.research.google.com/github/"
LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the README as `index.md`, and `notebooks.md`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"<!-- index:.*?-->\n", "", readme, flags=re.DOTALL)
    readme = re.sub(r"""(srcset="|src=")docs/""", r"\1", readme)
    readme = LINK.sub(lambda found: found[0].replace(f"({found[2]}", f"({_from_docs(found[2])}"), readme)
    files.append(File.generated(config, "index.md", content=readme))
    files.append(File.generated(config, "notebooks.md", content="\n".join(_notebooks())))
    return files


def _notebooks() -> Iterator[str]:
    """A line a notebook; the one on Colab is that of this version, which its first cell installs."""
    yield "# Notebooks\n"
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        title = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"][0].strip("# \n")
        there = f"{REPOSITORY}/blob/v{version('alignopsd-trl')}/notebooks/{path.name}".replace(GITHUB, COLAB)
        colab = f" ([Open in Colab]({there}))" if REPOSITORY.startswith(GITHUB) else ""
        yield f"- [{title}](../notebooks/{path.name}){colab}"


def _from_docs(path: str) -> str:
    return path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links to files outside `docs/` into links to the repository, and fills in the table of settings.

    Raises:
        PluginError: if a page links to a file that is not there.
    """
    if page.file.src_uri == "settings.md":
        markdown = markdown.replace("<!-- settings -->", _settings())

    def outside(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        if not path.startswith("../"):
            return found[0]
        inside = path.removeprefix("../")
        if not (ROOT / inside).exists():
            raise PluginError(f"{page.file.src_uri} links to {inside}, which is not there")
        return f"[{words}]({REPOSITORY}/blob/main/{inside}{anchor})" if REPOSITORY else f"{words} (`{inside}`)"

    return LINK.sub(outside, markdown)


def _settings() -> str:
    """A row for each field that `AlignOPSDConfig` has beside those of `GRPOConfig`."""
    from trl import GRPOConfig

    from alignopsd_trl.config import AlignOPSDConfig

    inherited = {one.name: one.default for one in dataclasses.fields(GRPOConfig)}
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for one in dataclasses.fields(AlignOPSDConfig):
        if one.name in inherited and one.default == inherited[one.name]:
            continue
        made = one.default_factory is not dataclasses.MISSING
        default = one.default_factory() if made else one.default  # type: ignore[misc]
        meaning = " ".join(str(one.metadata.get("help", "")).split()).replace("|", "\\|").replace("[", "\\[")
        rows.append(f"| `{one.name}` | `{default!r}` | {meaning} |")
    return "\n".join(rows)
