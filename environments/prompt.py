"""Renders turns by jinja files with the same names in every environment."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import jinja2
from jinja2 import meta

from alignopsd_trl.environments.base import Message, View

NAMES = frozenset("task skill history step_count observation admissible".split())


class TemplatePrompt:
    """Renders a `View` as one user message.

    A template knows ``task`` (`str`), ``skill`` (`str`, empty for none), ``history`` (the shown `Record`s: ``number``,
    ``observation``, ``action``, ``result``), ``step_count`` (actions so far), ``observation`` (`str`) and
    ``admissible`` (`tuple[str, ...]`). A line with nothing but a jinja statement renders no line. The test ``match``
    takes a regular expression.

    Args:
        environment: name of the environment.
        templates: the shipped templates by name.
        template: one of these names, or a file.

    Raises:
        ValueError: if there is no such template, it is no jinja, or it uses another name than these.
    """

    def __init__(self, environment: str, templates: Mapping[str, Path], template: str | Path):
        path = templates.get(str(template), Path(template))
        if not path.is_file():
            raise ValueError(f"template {str(template)!r} is unknown; use one of {', '.join(templates)} or a file")
        self.name = f"{environment}-{template if str(template) in templates else path.stem}"
        text = path.read_text(encoding="utf-8")
        self.checksum = hashlib.sha256(text.encode()).hexdigest()[:8]
        self._template = _compiled(text, str(path))

    def render(self, view: View, skill: str = "") -> str:
        return self._template.render(
            task=view.task_text,
            skill=skill,
            history=view.history,
            step_count=view.step_count,
            observation=view.observation,
            admissible=view.admissible,
        )


class ShortPrompt:
    """Renders a `View` in few tokens: the task, the skill, past turns, the observation, the actions on offer and the
    answer's form. An empty system message keeps chat templates from adding a long one.

    Args:
        offers: whether the actions on offer are shown.
        form: what stands between the tags of an answer, such as ``"[number]"``. Empty: no line asks for an answer's
            form, where demonstrations have taught it.
    """

    name = "short"

    def __init__(self, offers: bool = False, form: str = ""):
        self.offers, self.form = offers, form

    def render(self, view: View, skill: str = "") -> list[Message]:
        past = [line for record in view.history for line in (record.observation, f"> {record.action}")]
        offered = f"Actions: {'; '.join(view.admissible)}" if self.offers else ""
        asked = f"Think briefly, then end with <action>{self.form}</action>" if self.form else ""
        text = "\n".join(filter(None, [view.task_text, skill, *past, view.observation, offered, asked]))
        return [{"role": "system", "content": ""}, {"role": "user", "content": text}]


def templates_of(folder: Path) -> dict[str, Path]:
    """Returns the shipped templates of an environment's folder: ``prompt_<name>.jinja``."""
    return {path.stem.removeprefix("prompt_"): path for path in sorted((folder / "data").glob("prompt_*.jinja"))}


@lru_cache(maxsize=32)
def _compiled(text: str, path: str) -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None
    try:
        asked = meta.find_undeclared_variables(environment.parse(text))
    except jinja2.TemplateError as error:
        raise ValueError(f"{path} is no jinja template: {error}") from error
    if asked - NAMES or not asked & {"task", "observation", "history"}:
        odd = f"asks for {', '.join(sorted(asked - NAMES))}" if asked - NAMES else "shows nothing of a turn"
        raise ValueError(f"{path} {odd}; a template knows {', '.join(sorted(NAMES))}")
    return environment.from_string(text)
