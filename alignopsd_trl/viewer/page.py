"""Makes self-contained HTML files by Jinja2, with our own CSS and JavaScript and gzipped data. No network.

Script elements hold the data as base64 (one step each) or as JSON without ``<``, so that no text of an environment can
end an element. The page inserts texts as text, never as HTML.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from alignopsd_trl.common.files import write_bytes
from alignopsd_trl.runs.owned import owned
from alignopsd_trl.viewer.run import Run, step_content

_ENVIRONMENT = Environment(loader=PackageLoader("alignopsd_trl.viewer", "assets"), autoescape=True)
_BLOB = re.compile(r"(?:step|tokens)-(-?\d{1,9})(?:-\d{1,9})?")


@dataclass(frozen=True)
class Page:
    """A page that can be shown in a notebook, saved, or served.

    Attributes:
        html: makes the whole document with all steps.
        head: makes the document for a server, which loads steps one by one.
        blob: name -> gzipped JSON of a step (``step-NUMBER``) or of a task's token columns (``tokens-STEP-NUMBER``);
            `None` if there is none of this name.
    """

    html: Callable[[], str]
    head: Callable[[], str]
    blob: Callable[[str], bytes | None] = field(default=lambda name: None)

    def save(self, path: str | os.PathLike) -> Path:
        """Writes the self-contained file atomically."""
        with owned("view", Path(path)):
            return write_bytes(path, self.html().encode())

    def show(self, height: int = 900) -> Any:
        """Shows the page in a notebook's cell, ``height`` pixels high."""
        from IPython.display import HTML

        frame = f'<iframe style="width:100%;height:{height}px;border:0" srcdoc="{html.escape(self.html())}"></iframe>'
        return HTML(frame)


def run_page(run: Run, steps: Sequence[int] | None = None, task: str | None = None) -> Page:
    """Makes the page of one run; see `alignopsd_trl.viewer.view_run`."""
    chosen = run.steps if steps is None else list(steps)
    missing = sorted(set(chosen) - set(run.steps))
    if missing:
        raise ValueError(f"step {missing[0]} isn't in {run.name}; its steps are {', '.join(map(str, run.steps))}")
    tasks = sorted(run.frame[run.frame.step.isin(chosen)].task.unique())
    if task is not None and task not in tasks:
        raise ValueError(f"task {task!r} isn't in {run.name}; some that are: {', '.join(tasks[:8])}")
    head = {
        "name": run.name,
        "facts": run.facts,
        "curves": [asdict(curve) for curve in run.curves],
        "evaluation": run.evaluation,
        "temperature": run.temperature,
        "steps": chosen,
        "task": task,
    }

    @lru_cache(maxsize=1)
    def blobs(step: int) -> dict[str, bytes]:
        found, tokens = step_content(run, step), {}
        for number, one in enumerate(found["tasks"]):
            if taken := _taken_tokens(one):
                one["tokens"], tokens[f"tokens-{step}-{number}"] = True, _packed(taken)
        return {f"step-{step}": _packed(found)} | tokens

    def blob(name: str) -> bytes | None:
        found = _BLOB.fullmatch(name)
        return blobs(int(found[1])).get(name) if found and int(found[1]) in chosen else None

    def whole() -> str:
        coded = [(name, base64.b64encode(one).decode()) for step in chosen for name, one in blobs(step).items()]
        return _render("view.js", run.name, head | {"served": False}, coded)

    return Page(whole, lambda: _render("view.js", run.name, head | {"served": True}, []), blob)


def _taken_tokens(task: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Removes the token columns from a task's turns and returns them by rollout and turn; empty without any."""

    def taken(turn: dict[str, Any]) -> dict[str, Any]:
        places = turn, turn["credit"]
        return {name: one.pop(name) for one in places for name in list(one) if name.startswith("token_")}

    parts = [[taken(turn) for turn in rollout["turns"]] for rollout in task["rollouts"]]
    return parts if any(turn for rollout in parts for turn in rollout) else []


def compare_page(comparison: dict[str, Any]) -> Page:
    """Makes the page of several runs; see `alignopsd_trl.viewer.compare_runs`."""
    whole = partial(_render, "compare.js", " against ".join(comparison["names"][::-1]), comparison, [])
    return Page(whole, whole)


def _render(script: str, title: str, head: dict[str, Any], blobs: Sequence[tuple[str, str]]) -> str:
    scripts = [_asset(name) for name in ("draw.js", "terms.js", script)]
    return _ENVIRONMENT.get_template("page.html.jinja").render(
        title=title, style=_asset("view.css"), scripts=scripts, head=_json(head).replace("<", "\\u003c"), blobs=blobs
    )


def _packed(value: Any) -> bytes:
    return gzip.compress(_json(value).encode(), compresslevel=6, mtime=0)


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("\u2028", "\\u2028")
