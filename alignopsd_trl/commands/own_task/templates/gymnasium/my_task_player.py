"""The scripted player: any action on offer, which teaches the form alone. Write a better one over it."""


def play(view, environment, skill, draw):
    """The response to one prompt."""
    action = draw.choice(view.admissible or (view.observation,))
    return f"<think>I try {action}</think>\n<action>{action}</action>"
