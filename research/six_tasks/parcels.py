"""Parcels at three counters. A clerk looks into one and puts it where the counter keeps such things: four rules a
counter, which nothing says. ``category`` is the counter, or finer the rule."""

from generated import suite_of

from alignopsd_trl.environments import Opening, PlainEnvironment, Step

CONTENTS = ("glass", "oil", "paper", "seeds")
PLACES = {  # of contents, in their order
    "Harbour": ("cart", "cellar", "safe", "van"),
    "Market": ("van", "safe", "cart", "cellar"),
    "Station": ("safe", "van", "cellar", "cart"),
}
RULES = tuple(f"{counter} {one}" for counter in PLACES for one in CONTENTS)


def rules(counter):
    return dict(zip(CONTENTS, PLACES[counter], strict=True))


class Parcels(PlainEnvironment):
    history_length, max_turns = 0, 3

    def reset(self, counter, contents, **columns):
        self.counter, self.contents, self.seen = counter, contents, False
        return Opening("The parcel is closed.", f"Put away the parcel at {counter}.")

    def step(self, action):
        verb, _, place = action.partition(" ")
        if action == "look":
            self.seen = True
            return Step(f"It holds {self.contents}.")
        if verb != "put" or place not in PLACES[self.counter]:
            return Step("Say: look, or put PLACE.", valid=False)
        won = place == rules(self.counter)[self.contents]
        return Step("Put.", reward=float(won), done=True, won=won, score=float(won))


def make(draw):
    counter, contents = draw.choice(list(PLACES)), draw.choice(CONTENTS)
    return {"counter": counter, "contents": contents, "rule": f"{counter} {contents}"}


def skill(task_text, row):
    kept = ", ".join(f"{one} in the {place}" for one, place in rules(row["counter"]).items())
    return f"{row['counter']} keeps {kept}."


def suite(category="counter", **options):
    categories = {"counter": tuple(PLACES), "rule": RULES}[category]
    return suite_of("parcels", Parcels, make, categories, "parcels:skill", category)


def play(view, environment, skill, draw):
    """Looks first; without the rule it draws one of the four places."""
    if not environment.seen:
        return "<think>closed: look</think>\n<action>look</action>"
    place = (rules(environment.counter) if skill else {environment.contents: draw.choice(PLACES[environment.counter])})[
        environment.contents
    ]
    said = f"{environment.counter} keeps {environment.contents} in the {place}"
    return f"<think>{said}</think>\n<action>put {place}</action>"
