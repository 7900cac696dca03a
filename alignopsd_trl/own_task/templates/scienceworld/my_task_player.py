"""The scripted player: under the skill ScienceWorld's gold path; without it half of the time any step of that path."""


def play(view, environment, skill, draw):
    """The response to one prompt."""
    if not view.step_count:
        environment.path, environment.right = environment.gold(), 0
    right = environment.path[min(environment.right, len(environment.path) - 1)]
    action = right if skill or draw.random() < 0.5 else draw.choice(environment.path)
    environment.right += action == right
    return f"<think>{view.step_count + 1}: {action}</think>\n<action>{action}</action>"
