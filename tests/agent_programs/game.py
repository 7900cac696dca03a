"""The game that all programs play."""

ORDERS = "You find numbers. Call a tool in each message."
REQUEST = "Find the number between 1 and 10."
TOOL = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


class Game:
    """A number to find; the reward is the greater, the fewer the guesses."""

    def __init__(self, number: int):
        self.number, self.guesses, self.reward = number, 0, 0.0

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Between 1 and 10.
        """
        self.guesses += 1
        if number == self.number:
            self.reward = 1.0 / self.guesses
            return f"{number} is right."
        return f"{number} is too {'low' if number < self.number else 'high'}."
