"""A puzzle: four stones with numbers are put in order by swapping neighbours. Each guild has its own order, rising or
falling, and does not say it. A row in the wrong order loses."""

from generated import suite_of

from alignopsd_trl.environments import Opening, PlainEnvironment, Step

ORDERS = {"Masons": "rising", "Smiths": "falling"}
STONES = 4


class Sorting(PlainEnvironment):
    history_length, max_turns = 0, 8

    def reset(self, guild, stones, **columns):
        self.order, self.stones = ORDERS[guild], list(stones)
        return Opening(self._shown(), f"Order the stones of the {guild}, then say done.")

    def step(self, action):
        words = action.split()
        if action == "done":
            won = self.stones == self.wanted(self.order)
            return Step(self._shown(), reward=float(won), done=True, won=won, score=float(won))
        if len(words) != 3 or words[0] != "swap" or not set(words[1:]) <= set(map(str, self.stones)):
            return Step(f"Say swap STONE STONE, or done. {self._shown()}", valid=False)
        first, second = (self.stones.index(int(word)) for word in words[1:])
        if abs(first - second) != 1:
            return Step(f"They are no neighbours. {self._shown()}", valid=False)
        self.stones[first], self.stones[second] = self.stones[second], self.stones[first]
        return Step(self._shown())

    def wanted(self, order):
        return sorted(self.stones, reverse=order == "falling")

    def _shown(self):
        return f"Stones: {' '.join(map(str, self.stones))}."


def make(draw):
    return {"guild": draw.choice(list(ORDERS)), "stones": draw.sample(range(1, 10), STONES)}


def skill(task_text, row):
    return f"The {row['guild']} want the stones {ORDERS[row['guild']]}."


def suite(**options):
    return suite_of("sorting", Sorting, make, ORDERS, "sorting:skill", "guild")


def play(view, environment, skill, draw):
    """Swaps the first pair of neighbours in the wrong order; without the skill it takes the order that needs less."""
    stones = environment.stones
    rising = [pair for pair in zip(stones, stones[1:], strict=False) if pair[0] > pair[1]]
    falling = [pair for pair in zip(stones, stones[1:], strict=False) if pair[0] < pair[1]]
    order = environment.order if skill else ("rising" if len(rising) <= len(falling) else "falling")
    wrong = rising if order == "rising" else falling
    if not wrong:
        return f"<think>{order}: {' '.join(map(str, stones))} is in order</think>\n<action>done</action>"
    first, second = wrong[0]
    return f"<think>{order}: {first} before {second} is wrong</think>\n<action>swap {first} {second}</action>"
