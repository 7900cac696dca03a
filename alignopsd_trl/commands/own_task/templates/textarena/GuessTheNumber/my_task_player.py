"""The scripted player: with the text that the teacher reads it names the number, without it it halves what the hints
leave."""

import re


def play(view, environment, skill, draw):
    """The response to one prompt."""
    least, most = map(int, re.search(r"between (\d+) and (\d+)", view.task_text).groups())
    told = {int(one.action.strip("[]")): one.result for one in view.history}
    low = max([number for number, hint in told.items() if "higher" in hint], default=least - 1)
    high = min([number for number, hint in told.items() if "lower" in hint], default=most + 1)
    hidden = re.search(r"\d+", skill)
    number = int(hidden[0]) if hidden else (low + high) // 2
    return f"<think>above {low}, below {high}: {number}</think>\n<action>[{number}]</action>"
