"""How a turn of Search-QA is shown to a policy."""

from __future__ import annotations

from pathlib import Path

from alignopsd_trl.environments.prompt import TemplatePrompt, templates_of

TEMPLATES = templates_of(Path(__file__).parent)


class SearchQAPrompt(TemplatePrompt):
    """A turn as one user message. Reasoning is not kept, actions and results are.

    Args:
        template: ``paper``, ``tiny``, or a jinja file.
    """

    def __init__(self, template: str | Path = "paper"):
        super().__init__("searchqa", TEMPLATES, template)
