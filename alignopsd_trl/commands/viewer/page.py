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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from alignopsd_trl.commands.viewer.run import Run, paired, step_content
from alignopsd_trl.common.files import plain, write_bytes
from alignopsd_trl.runs.owned import owned

_ENVIRONMENT = Environment(loader=PackageLoader("alignopsd_trl.commands.viewer", "assets"), autoescape=True)


@dataclass(frozen=True)
class HtmlPage:
    """A page, the document ``html``, that can be shown in a notebook or saved."""

    html: str

    def save(self, path: str | os.PathLike) -> Path:
        with owned("view", Path(path)):
            return write_bytes(path, self.html.encode())

    def show(self, height: int = 900) -> Any:
        """Shows the page in a notebook's cell, ``height`` pixels high."""
        from IPython.display import HTML

        frame = f'<iframe style="width:100%;height:{height}px;border:0" srcdoc="{html.escape(self.html)}"></iframe>'
        return HTML(frame)


def run_page(run: Run, steps: Sequence[int] | None = None, task: str | None = None) -> HtmlPage:
    chosen = run.steps if steps is None else list(steps)
    if missing := sorted(set(chosen) - set(run.steps)):
        raise ValueError(f"step {missing[0]} isn't in {run.name}; its steps are {', '.join(map(str, run.steps))}")
    tasks = sorted(run.frame[run.frame.step.isin(chosen)].task.unique())
    if task is not None and task not in tasks:
        raise ValueError(f"task {task!r} isn't in {run.name}; some that are: {', '.join(tasks[:8])}")
    head = {
        "name": run.name,
        "facts": run.facts,
        "curves": run.curves,
        "evaluation": run.evaluation,
        "gain": plain(paired(run.evaluation.get("before"), run.evaluation.get("after"))),
        "again": run.again(chosen),
        "temperature": run.temperature,
        "steps": chosen,
        "task": task,
    }

    coded = []
    for step in chosen:
        found = step_content(run, step)
        for number, one in enumerate(found["tasks"]):
            if taken := _taken_tokens(one):
                one["tokens"] = True
                coded.append((f"tokens-{step}-{number}", _packed(taken)))
        coded.append((f"step-{step}", _packed(found)))
    return _render(("reading.js", "view.js"), run.name, head, coded)


def _taken_tokens(task: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Removes the token columns from a task's turns and returns them by rollout and turn; empty without any."""

    def taken(turn: dict[str, Any]) -> dict[str, Any]:
        places = turn, turn["credit"]
        return {name: one.pop(name) for one in places for name in list(one) if name.startswith("token_")}

    parts = [[taken(turn) for turn in rollout["turns"]] for rollout in task["rollouts"]]
    return parts if any(turn for rollout in parts for turn in rollout) else []


def compare_page(comparison: dict[str, Any]) -> HtmlPage:
    return _render(("compare.js",), " against ".join(comparison["names"][::-1]), comparison, [])


def _render(scripts: Sequence[str], title: str, head: dict[str, Any], blobs: Sequence[tuple[str, str]]) -> HtmlPage:
    scripts = [_asset(name) for name in ("draw.js", "terms.js", *scripts)]
    inert, page = _json(head).replace("<", "\\u003c"), _ENVIRONMENT.get_template("page.html.jinja")
    return HtmlPage(page.render(title=title, style=_asset("view.css"), scripts=scripts, head=inert, blobs=blobs))


def _packed(value: Any) -> str:
    return base64.b64encode(gzip.compress(_json(value).encode(), compresslevel=6, mtime=0)).decode()


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """Returns JSON in which dataclasses stand by their fields."""
    text = json.dumps(value, default=vars, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("\u2028", "\\u2028")
