"""The scripted player: under the skill it halves what the hints leave, without it any number that it did not try."""

import re


def play(view, environment, skill, draw):
    """The response to one prompt."""
    least, most = map(int, re.search(r"between (\d+) and (\d+)", view.task_text).groups())
    told = {int(one.action.strip("[]")): one.result for one in view.history}
    low = max([number for number, hint in told.items() if "higher" in hint], default=least - 1)
    high = min([number for number, hint in told.items() if "lower" in hint], default=most + 1)
    untried = [number for number in range(least, most + 1) if number not in told]
    number = (low + high) // 2 if skill else draw.choice(untried)
    return f"<think>above {low}, below {high}: {number}</think>\n<action>[{number}]</action>"
