"""The scripted player: under the skill TextWorld's own walkthrough, without it any command on offer."""


def play(view, environment, skill, draw):
    """The response to one prompt."""
    way = environment.state.policy_commands  # from here to the end, as the game knows it
    command = way[0] if skill and way else draw.choice(view.admissible)
    return f"<think>{view.step_count + 1}: {command}</think>\n<action>{command}</action>"
