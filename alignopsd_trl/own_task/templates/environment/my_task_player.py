"""The scripted player: careful with the skill in its prompt, often careless without it, so that the policy learns to
read skills and has something left to learn without them."""


def play(view, environment, skill, draw):
    """The response to one prompt. A player may look into the environment, the policy that learns from it can't."""
    ways = environment.ways()
    way = draw.choice(ways) if not skill and draw.random() < 0.3 else ways[0]
    return f"<think>{environment.door(way)}</think>\n<action>go {way}</action>"
