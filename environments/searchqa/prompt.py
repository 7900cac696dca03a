"""Renders a turn of Search-QA for a policy."""

from __future__ import annotations

from pathlib import Path

from alignopsd_trl.environments.prompt import TemplatePrompt, templates_of

TEMPLATES = templates_of(Path(__file__).parent)


class SearchQAPrompt(TemplatePrompt):
    """Renders a turn as one user message, with past actions and results but without past reasoning.

    Args:
        template: ``paper``, ``tiny``, or a jinja file.
    """

    def __init__(self, template: str | Path = "paper"):
        super().__init__("searchqa", TEMPLATES, template)
