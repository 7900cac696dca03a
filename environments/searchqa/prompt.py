"""Renders a turn of Search-QA for a policy."""

from __future__ import annotations

from pathlib import Path

from alignopsd_trl.environments.base import Message, View
from alignopsd_trl.environments.prompt import TemplatePrompt, templates_of
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


class ShortSearchQAPrompt:
    """Renders a turn in few tokens, for demonstrations to explain: the skill as system message, which stays empty
    without one, the question, the queries and the last passages. A conversation's later turns show their passages."""

    name, checksum = "searchqa-short", "1"

    def render(self, view: View, skill: str = "") -> list[Message]:
        queries = [read_action(record.action).text for record in view.history]
        shown = "\n".join([view.task_text, *queries, *([self.reply(view)] if queries else [])])
        return [{"role": "system", "content": skill}, {"role": "user", "content": shown}]

    def reply(self, view: View) -> str:
        return "\n".join(read_titles(view.observation).values()) or "Search or answer."


def prompt_of(template: str | Path) -> SearchQAPrompt | ShortSearchQAPrompt:
    """Returns the prompt of the option ``template``."""
    return ShortSearchQAPrompt() if template == "short" else SearchQAPrompt(template)
