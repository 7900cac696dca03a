"""The scripted player. It knows no game: it tries what the rules show in brackets, with other numbers and letters where
they stand for such, which teaches the form of a move. Write a better one, or let a model play: `alignopsd demonstrate
my_task --endpoint URL`."""

import re

PLACES = re.compile(r"\d+|\b(?:row|col|column|number|num|n|r|c|x|y|letter)\b", re.IGNORECASE)


def play(view, environment, skill, draw):
    """The response to one prompt."""
    shown = re.findall(r"\[[^\[\]\n]{1,24}\]", f"{view.task_text}\n{view.observation}") or ["[1]"]
    move = PLACES.sub(lambda place: draw.choice("abcd" if "letter" in place[0] else "0123456789"), draw.choice(shown))
    return f"<think>I try {move}</think>\n<action>{move}</action>"
