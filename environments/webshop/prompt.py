"""Renders a turn for a policy (WebShop facts 11.3) and parses its response into an action (WebShop facts 11.1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from alignopsd_trl.environments.base import Projection, View
from alignopsd_trl.environments.projection import action_in_tags
from alignopsd_trl.environments.prompt import TemplatePrompt, templates_of

MAX_CHARACTERS = 13_000
TEMPLATES = templates_of(Path(__file__).parent)
TAIL = 20  # characters of a response that stand for the action when there are no action tags


class WebShopPrompt(TemplatePrompt):
    """Renders a turn as one user message.

    Args:
        template: ``paper``, ``compact``, ``tiny`` or a jinja file.
    """

    def __init__(self, template: str | Path = "paper"):
        super().__init__("webshop", TEMPLATES, template)

    def render(self, view: View, skill: str = "") -> str:
        """Renders a turn. History is left out if the message without the skill would exceed 13,000 characters, so that
        the views with and without a skill show the same history."""
        if view.history and len(super().render(view)) > MAX_CHARACTERS:
            view = replace(view, history=())
        return super().render(view, skill.strip())


def project(response: str) -> Projection:
    """Parses a response by `action_in_tags`; an inadmissible action in tags is valid (but see ``validity``)."""
    return action_in_tags(response, TAIL)
