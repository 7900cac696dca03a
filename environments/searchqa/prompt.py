"""Renders a turn of Search-QA for a policy."""

from __future__ import annotations

from pathlib import Path

from alignopsd_trl.environments.base import View
from alignopsd_trl.environments.prompt import SHORT, ShortPrompt, TemplatePrompt, templates_of
from alignopsd_trl.environments.searchqa.engine.actions import read_action
from alignopsd_trl.environments.searchqa.engine.observations import read_titles

TEMPLATES = templates_of(Path(__file__).parent)


class SearchQAPrompt(TemplatePrompt):
    """Renders a turn as one user message, with past actions and results but without past reasoning.

    Args:
        template: ``paper``, ``tiny``, or a jinja file.
    """

    def __init__(self, template: str | Path = "paper"):
        super().__init__("searchqa", TEMPLATES, template)


def prompt_of(template: str | Path) -> SearchQAPrompt | ShortPrompt:
    """Returns the prompt of the option ``template``: ``short`` shows queries and the last passages alone."""
    return ShortPrompt("searchqa", _passages, _query) if template == SHORT else SearchQAPrompt(template)


def _query(action: str) -> str:
    return read_action(action).text


def _passages(view: View) -> str:
    said = "\n".join(read_titles(view.observation).values()) or "Search or answer."
    return said if view.step_count else ""
