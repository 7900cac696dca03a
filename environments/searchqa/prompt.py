"""How a turn of Search-QA is shown to a policy: a template, filled anew at every turn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import jinja2

from environments.base import Record, View

_DATA = Path(__file__).parent / "data"
TEMPLATES = {"paper": _DATA / "prompt.jinja", "tiny": _DATA / "prompt_tiny.jinja"}


def memory(history: Sequence[Record]) -> str:
    """``Step n:action result`` and a line break for each record, joined by a line break. Reasoning is not kept."""
    return "\n".join(f"Step {record.number}:{record.action} {record.result}\n" for record in history)


@lru_cache
def paper_prompt() -> SearchQAPrompt:
    """The paper's template, compiled once for all environments."""
    return SearchQAPrompt()


class SearchQAPrompt:
    """Renders a `View` as one user message.

    Args:
        template: ``paper``, ``tiny``, or a jinja file with the names ``question``, ``skill``, ``step_count`` and
            ``memory``.

    Raises:
        ValueError: if there is no such template.
    """

    def __init__(self, template: str | Path = "paper"):
        path = TEMPLATES.get(str(template), Path(template))
        if not path.is_file():
            raise ValueError(f"template {str(template)!r} is unknown; use one of {', '.join(TEMPLATES)} or a file")
        text = path.read_text(encoding="utf-8")
        self.name = f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(text)

    def render(self, view: View, skill: str = "") -> str:
        return self._template.render(
            question=view.task_text, skill=skill, step_count=view.step_count, memory=memory(view.history)
        )
