"""A player that reads the solution; without it, it does not know. Its turns teach the answer's form alone."""


def play(view, environment, skill, draw):
    return f"Answer: {environment.answer}" if skill else "Answer: unknown"
