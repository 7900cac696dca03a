"""The scripted player: under the skill ScienceWorld's gold path, without it a step of that path at random."""


def play(view, environment, skill, draw):
    """The response to one prompt."""
    if not view.step_count:
        environment.path = environment.gold()
    path = environment.path
    action = path[view.step_count] if skill and view.step_count < len(path) else draw.choice(path)
    return f"<think>{view.step_count + 1}: {action}</think>\n<action>{action}</action>"
