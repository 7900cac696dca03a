"""The scripted player. It knows no game: it tries what the rules show in brackets, which teaches the form of a move.
Write a better one, or let a model play: `alignopsd demonstrate my_task --endpoint URL --won_only`."""

import re


def play(view, environment, skill, draw):
    """The response to one prompt."""
    moves = re.findall(r"\[[^\[\]\n]{1,24}\]", f"{view.task_text}\n{view.observation}") or ["[1]"]
    move = draw.choice(moves)
    return f"<think>I try {move}</think>\n<action>{move}</action>"
