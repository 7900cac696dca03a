"""Renders a turn for the policy and parses its response into a command."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from alignopsd_trl.environments.base import Projection
from alignopsd_trl.environments.projection import action_in_tags
from alignopsd_trl.environments.prompt import TemplatePrompt, templates_of

TEMPLATES = templates_of(Path(__file__).parent)
VALIDITY = ("format", "admissible")
TASK_MARK = "Your task is to: "
TAIL = 30  # characters of a response that stand for the command when there are no action tags


class AlfWorldPrompt(TemplatePrompt):
    """Renders a turn as one user message.

    Args:
        template: ``paper``, ``tiny`` for short prompts, or a jinja file.
    """

    def __init__(self, template: str | Path = "paper"):
        super().__init__("alfworld", TEMPLATES, template)


def project(response: str, validity: str = "format", admissible: Collection[str] | None = None) -> Projection:
    """Parses a response into a command by the rule of the paper's authors (`action_in_tags`).

    Args:
        response: anything that a policy wrote.
        validity: ``format``, or ``admissible``: the same rule and, on top, the command is one of ``admissible``.
        admissible: the commands of the turn that the response answers; needed for ``admissible`` only.

    Raises:
        ValueError: if ``validity`` is unknown, or ``admissible`` is needed and not given.
    """
    if validity not in VALIDITY:
        raise ValueError(f"validity={validity!r} is unknown; use one of {', '.join(map(repr, VALIDITY))}")
    found = action_in_tags(response, TAIL)
    if validity == "format":
        return found
    if admissible is None:
        raise ValueError("validity='admissible' needs the turn's admissible commands: project(response, admissible)")
    return replace(found, valid=found.valid and found.action in admissible)


def task_text(observation: str) -> str:
    """Returns the task sentence of a first observation, with its final point.

    Raises:
        ValueError: if the observation names no task.
    """
    _, mark, task = observation.partition(TASK_MARK)
    if not mark:
        raise ValueError(f"the first observation has no {TASK_MARK!r}: {observation[:200]!r}")
    return task.strip()
