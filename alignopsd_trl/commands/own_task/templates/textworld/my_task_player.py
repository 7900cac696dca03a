"""The scripted player: it gives the commands that the teacher's text names. Without them it searches: any command on
offer that it did not give in the turns that its prompt shows, and none that only looks."""

LOOKS = ("look", "examine", "inventory")


def play(view, environment, skill, draw):
    """The response to one prompt."""
    way = skill.partition(": ")[2].split("; ") if skill else []
    given = {one.action for one in view.history}
    new = [one for one in view.admissible if one not in given and not one.startswith(LOOKS)]
    command = way[view.step_count] if view.step_count < len(way) else draw.choice(new or view.admissible)
    return f"<think>{view.step_count + 1}: {command}</think>\n<action>{command}</action>"
