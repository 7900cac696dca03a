"""The prompt of an agent's turn: the messages of its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.base import Chat, View, Wishes


class AgentPrompt:
    """Renders the request. The skill ends the last message of one role, or the last one of the user."""

    name = "agent"

    def __init__(self, native: bool, role: str):
        self.native, self._role = native, role

    def render(self, view: View, skill: str = "") -> Chat:
        ask = view.context.now
        return Chat(self._with(ask.messages, skill), ask.tools, ask.variables)

    def _with(self, messages: Sequence[Mapping[str, Any]], skill: str) -> list[Mapping[str, Any]]:
        shown = list(messages)
        if skill:
            places = [n for role in ("user", self._role) for n, one in enumerate(shown) if one["role"] == role]
            if not places:
                return [{"role": self._role, "content": skill}, *shown]
            last = shown[places[-1]]
            shown[places[-1]] = {**last, "content": f"{last['content']}\n\n{skill}".strip()}
        return shown

    def reply(self, view: View) -> list[Mapping[str, Any]]:
        return view.context.now.new

    def wishes(self, view: View) -> Wishes:
        ask = view.context.now
        return Wishes(ask.place, ask.follows, ask.trained, ask.max_tokens, ask.stop, ask.settings, ask.schema)
