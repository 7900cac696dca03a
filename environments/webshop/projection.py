"""A response turned into an action (WebShop facts 11.1)."""

from __future__ import annotations

import re

from environments.base import Projection

_IDEOGRAPH = re.compile("[\u4e00-\u9fff]")
_TAIL = 20  # characters that stand for the action when there are no action tags


def project(response: str) -> Projection:
    """The text between the first ``<action>`` and the first ``</action>``, stripped and lower-cased. Valid when both
    tags, ``<think>`` and ``</think>`` are there and no character is a CJK ideograph; an inadmissible action in correct
    tags is valid."""
    lowered = response.lower()
    start, end = lowered.find("<action>"), lowered.find("</action>")
    if start < 0 or end < 0:
        return Projection(lowered[-_TAIL:], False)
    action = lowered[start + len("<action>") : end].strip()
    thought = "<think>" in response and "</think>" in response
    return Projection(action, thought and _IDEOGRAPH.search(response) is None)
