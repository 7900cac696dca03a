"""From a response to the action in its tags: the rule that the paper family's code has for ALFWorld and WebShop."""

from __future__ import annotations

import re

from alignopsd_trl.environments.base import Projection

_IDEOGRAPH = re.compile("[\u4e00-\u9fff]")


def action_in_tags(response: str, tail: int) -> Projection:
    """What stands between the first ``<action>`` and the first ``</action>`` of the lower-cased response, stripped; the
    last ``tail`` characters where a tag is missing. Valid when both tags are there, ``<think>`` and ``</think>`` as
    typed, and no character of U+4E00..U+9FFF; whether the action is on offer is not asked."""
    lowered = response.lower()
    start, end = lowered.find("<action>"), lowered.find("</action>")
    if start < 0 or end < 0:
        return Projection(lowered[-tail:], False)
    thought = "<think>" in response and "</think>" in response
    action = lowered[start + len("<action>") : end].strip()
    return Projection(action, thought and _IDEOGRAPH.search(response) is None)
