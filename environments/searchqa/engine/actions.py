"""Parses a response into an action by the rules of the two public code bases.

``agent_loop`` (the default, verl-agent family): an action string and a verdict on the format; an invalid response can
still carry an action. ``search_r1``: the first complete pair in text order; invalid only if there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from alignopsd_trl.environments.base import Projection

SEARCH, ANSWER = "search", "answer"

_OPENING = {kind: re.compile(f"<{kind}>", re.IGNORECASE) for kind in (SEARCH, ANSWER)}
_CLOSING = {kind: re.compile(f"</{kind}>", re.IGNORECASE) for kind in (SEARCH, ANSWER)}
_ACTION = re.compile(r"\s*<(search|answer)>(.*)</\1>\s*", re.DOTALL)


class Action(NamedTuple):
    """The action that an episode executes: ``kind`` is ``search``, ``answer`` or empty (no action)."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"<{self.kind}>{self.text}</{self.kind}>" if self.kind else ""


NO_ACTION = Action("", "")


def read_action(action: str) -> Action:
    """Parses an action string once, by its outer tags; the text inside is not parsed again.

    ``<search><answer>a</answer></search>`` is therefore a search. Anything but one tagged text is no action.
    """
    match = _ACTION.fullmatch(action)
    return Action(match[1], match[2].strip()) if match else NO_ACTION


def project_agent_loop(response: str) -> Projection:
    """Cuts after the first ``</search>`` (else the first ``</answer>``), prefers a search pair to an answer pair and
    ignores the case of tags in pairs. Invalid: no pair, both opening tags, or one of them more than once, anywhere in
    the uncut response."""
    cut = _cut(response)
    action = next((found for kind in (SEARCH, ANSWER) if (found := _pair(cut, kind))), NO_ACTION)
    openings = sum(len(opening.findall(response)) for opening in _OPENING.values())
    return Projection(str(action), bool(action.kind) and openings == 1)


def project_search_r1(response: str) -> Projection:
    """After the same cut, the first pair of either kind in text order; case-sensitive. Invalid: no pair."""
    cut = _cut(response)
    starts = {kind: cut.find(f"<{kind}>") for kind in (SEARCH, ANSWER)}
    found = []
    for kind, start in starts.items():
        end = cut.find(f"</{kind}>", start) if start >= 0 else -1
        if end >= 0:
            found.append((start, Action(kind, cut[start + len(kind) + 2 : end].strip())))
    action = min(found)[1] if found else NO_ACTION
    return Projection(str(action), bool(action.kind))


def _pair(text: str, kind: str) -> Action | None:
    """Returns the first pair of tags in one pass: a lazy pattern takes quadratic time on many unclosed tags."""
    opening = _OPENING[kind].search(text)
    if opening is None:
        return None
    closing = _CLOSING[kind].search(text, opening.end())
    return Action(kind, text[opening.end() : closing.start()].strip()) if closing else None


def _cut(response: str) -> str:
    for closing in ("</search>", "</answer>"):
        head, found, _ = response.partition(closing)
        if found:
            return head + closing
    return response


PROJECTIONS: dict[str, Callable[[str], Projection]] = {
    "agent_loop": project_agent_loop,
    "search_r1": project_search_r1,
}
