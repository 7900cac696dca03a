"""The scripted player: it answers what the teacher's text says. Without that it guesses: it gives the answer to another
question of the dataset, as one who knows no more than how answers look. train.py demonstrates right answers alone."""

from my_task import question


def play(view, environment, skill, draw):
    """The response to one prompt. Its thought says nothing of the way to the answer: write one that does."""
    answer = skill.partition(": ")[2] or question(draw.randrange(999))[1]["answer"]
    return f"<think>{answer}</think>\n<action>{answer}</action>"
