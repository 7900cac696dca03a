"""The scripted player: careful with the skill in its prompt, often careless without it, so that the policy learns to
read skills and has something left to learn without them."""


def play(view, environment, skill, draw):
    """The response to one prompt. A player may look into the environment, the policy that learns from it can't."""
    ways = [action.removeprefix("go ") for action in view.admissible]
    if not skill and draw.random() < 0.3:
        way = draw.choice(ways)
        return f"<think>{way} is a door.</think>\n<action>go {way}</action>"
    way = min(ways, key=lambda way: _worth(environment, environment.beyond(way)))
    known = "known" if environment.visits.get(environment.beyond(way)) else "new"
    return f"<think>{way} is {known}.</think>\n<action>go {way}</action>"


def _worth(environment, room):
    return environment.visits.get(room, 0), environment.distance(room)
