"""How a turn is shown to a policy (WebShop facts 11.3): a template file, filled.

A template file has four sections: ``[[prompt]]`` with the slots ``skill_context``, ``task_description``, ``history``,
``current_step``, ``step_count``, ``current_observation`` and ``available_actions``; ``[[history]]`` with
``step_count``, ``history_length`` and ``action_history``; ``[[record]]`` with ``number``, ``observation``, ``action``
and ``result``; ``[[action]]`` with ``action``. What stands above the first section (source, remarks) is not sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from environments.base import View

MAX_CHARACTERS = 13_000
TEMPLATES = {name: Path(__file__).parent / "data" / f"prompt_{name}.txt" for name in ("paper", "compact", "tiny")}

_SLOT = re.compile(r"\{(\w+)\}")
_SECTIONS: dict[str, frozenset[str]] = {
    "prompt": frozenset(
        "skill_context task_description history current_step step_count current_observation available_actions".split()
    ),
    "history": frozenset({"step_count", "history_length", "action_history"}),
    "record": frozenset({"number", "observation", "action", "result"}),
    "action": frozenset({"action"}),
}


class TemplatePrompt:
    """Renders a turn as one user message.

    Args:
        template: ``"paper"``, ``"compact"``, ``"tiny"`` or the path of a template file.

    Raises:
        ValueError: if there is no such template or a section or slot of it is unknown or missing.
    """

    def __init__(self, template: str | Path = "paper"):
        path = TEMPLATES.get(str(template), Path(template))
        if not path.is_file():
            raise ValueError(f"template must be one of {sorted(TEMPLATES)} or a template file, got {str(template)!r}")
        self.name = f"webshop-{path.stem.removeprefix('prompt_')}"
        self._sections = _read(path)

    def render(self, view: View, skill: str = "") -> str:
        """The message of a turn. History is left out when there is none or when, without the skill, the message would
        exceed 13,000 characters; so the views with and without a skill show the same history."""
        history = self._history(view) if view.history else ""
        if history and len(self._fill(view, history, "")) > MAX_CHARACTERS:
            history = ""
        return self._fill(view, history, skill.strip())

    def history_text(self, view: View) -> str:
        """The shown records, one a line."""
        records = (
            {"number": str(record.number), "observation": record.observation, "action": record.action}
            | {"result": record.result}
            for record in view.history
        )
        return "\n".join(_fill(self._sections["record"], record) for record in records)

    def actions_text(self, admissible: tuple[str, ...]) -> str:
        """The admissible actions, one a line."""
        return "\n".join(_fill(self._sections["action"], {"action": action}) for action in admissible)

    def _history(self, view: View) -> str:
        slots = {"step_count": str(view.step_count), "history_length": str(len(view.history))}
        return _fill(self._sections["history"], {**slots, "action_history": self.history_text(view)})

    def _fill(self, view: View, history: str, skill: str) -> str:
        slots = {
            "skill_context": skill,
            "task_description": view.task_text,
            "history": history,
            "current_step": str(view.step_count + 1),
            "step_count": str(view.step_count),
            "current_observation": view.observation,
            "available_actions": self.actions_text(view.admissible),
        }
        return _fill(self._sections["prompt"], slots)


def _fill(template: str, slots: Mapping[str, str]) -> str:
    """Fills all slots in one pass (values may hold braces); a line of empty slots alone disappears."""
    kept = [line for line in template.split("\n") if not _vanishes(line, slots)]
    return _SLOT.sub(lambda match: slots[match[1]], "\n".join(kept))


def _vanishes(line: str, slots: Mapping[str, str]) -> bool:
    match = _SLOT.fullmatch(line)
    return match is not None and not slots[match[1]]


def _read(path: Path) -> dict[str, str]:
    parts = re.split(r"^\[\[(\w+)\]\]\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {name: body.rstrip("\n") for name, body in zip(parts[1::2], parts[2::2], strict=True)}
    if set(sections) != set(_SECTIONS):
        raise ValueError(f"{path}: sections are {sorted(sections)}; a template has {sorted(_SECTIONS)}")
    for name, body in sections.items():
        unknown = set(_SLOT.findall(body)) - _SECTIONS[name]
        if unknown:
            raise ValueError(
                f"{path}: section {name!r} has unknown slots {sorted(unknown)}; use {sorted(_SECTIONS[name])}"
            )
    return sections
