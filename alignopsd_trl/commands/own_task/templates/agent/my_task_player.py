"""The scripted player: it halves with the skill in its prompt, and often guesses without it."""

import re


def play(view, environment, skill, draw):
    """The response to one request. The last message is `view.observation`, all are `view.context.now.messages`."""
    low, high = map(int, re.findall(r"\d+", view.observation)[-2:])
    number = draw.randint(low, high) if not skill and draw.random() < 0.5 else (low + high) // 2
    return f"<think>between {low} and {high}</think>\n{number}"
