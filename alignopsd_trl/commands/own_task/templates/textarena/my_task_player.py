"""The scripted player. With the text that the teacher reads it makes the move that this names, or fills a form that the
rules show in brackets with what the game hides, where it fits. Without it, it knows no game: it tries what the rules
show, with other numbers and letters where they stand for such. Write a better one, or let a model play: `alignopsd
demonstrate my_task --endpoint URL`."""

import re

FORM = re.compile(r"\[[^\[\]\n]{1,24}\]")
PLACES = re.compile(r"\d+|\b(?:row|col|column|number|num|n|r|c|k|x|y|letter|word)\b|\b[A-Z]\b")
RANGE = re.compile(r"(\d+) ?(?:to|and|-) ?(\d+)")


def play(view, environment, skill, draw):
    """The response to one prompt."""
    shown = FORM.findall(view.task_text) or FORM.findall(view.observation) or ["[1]"]
    move = told(skill, shown, view.step_count) or guess(view, draw.choice(shown), draw)
    return f"<think>I try {move}</think>\n<action>{move}</action>"


def told(skill, shown, turn):
    """The move that the teacher's text says; `None` if it says none."""
    kind, _, text = skill.partition(": ")
    if kind == "The way":
        way = text.split("; ")
        return way[turn] if turn < len(way) else None
    parts = text.partition(";")[0].split()
    fitting = [form for form in shown if len(PLACES.findall(form)) == len(parts)]
    return PLACES.sub(lambda place: parts.pop(0), fitting[0]) if parts and fitting else None


def guess(view, form, draw):
    """A form with other numbers, no number twice, and other letters: numbers in brackets, else of the range that the
    rules name."""
    least, most = map(int, (RANGE.findall(view.task_text) or [("0", "9")])[0])
    offered = sorted(set(map(int, re.findall(r"\[(\d+)\]", view.observation)))) or range(least, most + 1)
    numbers = draw.sample(offered, len(offered)) * 9
    capitals = re.findall(r"\b[A-Z]\b", f"{form}{view.observation}")

    def another(place):
        if place[0].lower() in ("letter", "word"):
            return draw.choice("abcdefghijklmnopqrstuvwxyz")
        return draw.choice(capitals) if place[0].isupper() else str(numbers.pop())

    return PLACES.sub(another, form)
