"""The scripted player: it halves with the skill in its prompt, and often guesses without it."""


def play(view, environment, skill, draw):
    """The response to one prompt. A player may look into the environment, the policy that learns from it can't."""
    low, high = environment.low, environment.high
    number = draw.randint(low, high) if not skill and draw.random() < 0.5 else (low + high) // 2
    return f"<think>between {low} and {high}</think>\n<action>guess(number={number})</action>"
