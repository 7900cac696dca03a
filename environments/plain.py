"""An environment of which only `reset` and `step` must be written."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from alignopsd_trl.environments.base import Projection, TextEnvironment
from alignopsd_trl.environments.prompt import TemplatePrompt, templates_of

_ACTION = re.compile(r"<action>(?:(.*?)</action>|.*)", re.DOTALL | re.IGNORECASE)  # in linear time


class PlainEnvironment(TextEnvironment):
    """A `TextEnvironment` of which only `reset` and `step` must be written.

    The prompt shows the task, the skill, past actions with their results, the observation and any actions on offer, and
    requests thinking and one action in tags. The action is the inside of the first ``<action>`` as it was typed,
    stripped. A response without one is invalid, and its action is the empty string.
    """

    prompt = TemplatePrompt("environments", templates_of(Path(__file__).parent), "plain")

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return action_in(response)


def action_in(response: str, start: int = 0) -> Projection:
    """Returns the inside of the first ``<action>`` of a response."""
    found = _ACTION.search(response, start)
    inside = found[1] if found else None
    return Projection((inside or "").strip(), valid=inside is not None)
