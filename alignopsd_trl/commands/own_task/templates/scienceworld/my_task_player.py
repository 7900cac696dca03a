"""The scripted player: it takes the steps that the teacher's text names. Without them, and where they end, it takes an
action that is possible and whose words it has read, but for those that decide the task (`focus on`)."""

import re

from my_task import FORM


def play(view, environment, skill, draw):
    """The response to one prompt."""
    way = skill.partition(": ")[2].split("; ") if skill else []
    action = way[view.step_count] if view.step_count < len(way) else draw.choice(readable(view, environment.possible()))
    return f"<think>{view.step_count + 1}: {action}</think>\n<action>{action}</action>"


def readable(view, actions):
    """The actions whose words stand in the prompt: a policy can write these alone. All, if there is none."""
    read = words(f"{FORM} {view.task_text} {view.observation}")
    return [one for one in actions if words(one) <= read] or actions


def words(text):
    return set(re.findall(r"\w+", text.lower()))
