"""How a turn is shown to the policy, and how a response becomes a command."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

import jinja2

from environments.base import Projection, Record, View

TEMPLATES = {
    "paper": Path(__file__).parent / "data" / "prompt.jinja",
    "tiny": Path(__file__).parent / "data" / "prompt_tiny.jinja",
}
VALIDITY = ("authors", "admissible")
TASK_MARK = "Your task is to: "

_CHINESE = re.compile("[\u4e00-\u9fff]")


class AlfWorldPrompt:
    """A turn as one user message.

    Args:
        template: ``paper``, or ``tiny`` for short prompts.

    Raises:
        ValueError: if there is no such template.
    """

    def __init__(self, template: str = "paper"):
        if template not in TEMPLATES:
            raise ValueError(f"template={template!r} is unknown; use one of {', '.join(map(repr, TEMPLATES))}")
        self._kind = template
        self.name = "alfworld" if template == "paper" else f"alfworld-{template}"

    def render(self, view: View, skill: str = "") -> str:
        return _template(self._kind).render(
            task_description=view.task_text,
            skill_context=skill,
            step_count=view.step_count,
            history_length=len(view.history),
            action_history="\n".join(map(_entry, view.history)),
            records=view.history,
            current_step=view.step_count + 1,
            current_observation=view.observation,
            admissible_actions="\n ".join(f"'{command}'" for command in view.admissible if command != "help"),
            commands=[command for command in view.admissible if command != "help"],
        )


def project(response: str, validity: str = "authors", admissible: Collection[str] | None = None) -> Projection:
    """A response as a command, by the rule of the paper's authors.

    The command is what stands between the first ``<action>`` and the first ``</action>`` of the lower-cased response,
    stripped; without both tags it is the last 30 characters. Valid means: both tags are there, ``<think>`` and
    ``</think>`` occur as typed, and no character of U+4E00..U+9FFF does. Membership in the admissible commands is not
    asked, unless ``validity="admissible"``.

    Args:
        response: anything that a policy wrote.
        validity: ``authors`` or ``admissible`` (the same rule and, on top, the command is one of ``admissible``).
        admissible: the commands of the turn that the response answers; needed for ``admissible`` only.

    Raises:
        ValueError: if ``validity`` is unknown, or ``admissible`` is needed and not given.
    """
    check_validity(validity)
    lowered = response.lower()
    start, end = lowered.find("<action>"), lowered.find("</action>")
    if start < 0 or end < 0:
        return Projection(lowered[-30:], False)
    action = lowered[start + len("<action>") : end].strip()
    valid = "<think>" in response and "</think>" in response and not _CHINESE.search(response)
    if validity == "admissible":
        if admissible is None:
            raise ValueError(
                "validity='admissible' needs the turn's admissible commands: project(response, admissible)"
            )
        valid = valid and action in admissible
    return Projection(action, valid)


def check_validity(validity: str) -> None:
    """Raises ValueError unless ``validity`` names a rule."""
    if validity not in VALIDITY:
        raise ValueError(f"validity={validity!r} is unknown; use one of {', '.join(map(repr, VALIDITY))}")


def task_text(observation: str) -> str:
    """The task sentence of a first observation, with its final point.

    Raises:
        ValueError: if the observation names no task.
    """
    _, mark, task = observation.partition(TASK_MARK)
    if not mark:
        raise ValueError(f"the first observation has no {TASK_MARK!r}: {observation[:200]!r}")
    return task.strip()


def _entry(record: Record) -> str:
    return f"[Observation {record.number}: '{record.observation}', Action {record.number}: '{record.action}']"


@lru_cache
def _template(kind: str) -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, autoescape=False, undefined=jinja2.StrictUndefined)
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    return environment.from_string(TEMPLATES[kind].read_text(encoding="utf-8"))
