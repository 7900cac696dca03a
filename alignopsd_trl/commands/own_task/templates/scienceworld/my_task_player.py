"""The scripted player: it takes the steps that the teacher's text names. Without them, and where they end, it takes any
action that is possible, but for those that decide the task (`focus on`)."""


def play(view, environment, skill, draw):
    """The response to one prompt."""
    way = skill.partition(": ")[2].split("; ") if skill else []
    action = way[view.step_count] if view.step_count < len(way) else draw.choice(environment.possible())
    return f"<think>{view.step_count + 1}: {action}</think>\n<action>{action}</action>"
