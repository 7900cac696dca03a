"""Parses the action in a response's tags by the rule of the paper family's code for ALFWorld and WebShop."""

from __future__ import annotations

import re

from alignopsd_trl.environments.base import Projection

_IDEOGRAPH = re.compile("[\u4e00-\u9fff]")


def action_in_tags(response: str, tail: int) -> Projection:
    """Returns the text between the first ``<action>`` and the first ``</action>`` of the lower-cased response,
    stripped; the last ``tail`` characters if a tag is missing. It is valid if both tags and, as typed, ``<think>`` and
    ``</think>`` are there, and no character of U+4E00..U+9FFF. Whether the action is on offer is not checked."""
    lowered = response.lower()
    start, end = lowered.find("<action>"), lowered.find("</action>")
    if start < 0 or end < 0:
        return Projection(lowered[-tail:], False)
    thought = "<think>" in response and "</think>" in response
    action = lowered[start + len("<action>") : end].strip()
    return Projection(action, thought and _IDEOGRAPH.search(response) is None)
