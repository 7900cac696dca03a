"""The scripted player: with the text that the teacher reads it accepts the highest of all values, without it the first
one, after a third of them, that is higher than those before."""

import re


def play(view, environment, skill, draw):
    """The response to one prompt."""
    values = [float(one) for one in re.findall(r"value is (\d+\.\d+)", shown(view))]
    hidden = [float(one) for one in re.findall(r"\d+\.\d+", skill)]
    count = int(re.search(r"observe (\d+)", view.task_text)[1])
    best = max(hidden) if hidden else max(values) if 3 * len(values) > count else 2.0
    move = "[accept]" if values[-1] >= best else "[continue]"
    thought = f"highest {best}" if hidden else f"highest so far {max(values)}"
    return f"<think>{thought}, now {values[-1]}</think>\n<action>{move}</action>"


def shown(view):
    return "\n".join([*(one.observation for one in view.history), view.observation])
