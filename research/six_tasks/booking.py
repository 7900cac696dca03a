"""A dialogue: a guest wants a table. The clerk asks what was not said and books. Each inn seats guests by a rule of
its own, inside or in the garden, which no guest knows."""

from generated import suite_of

from alignopsd_trl.environments import Opening, PlainEnvironment, Step

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOURS = ("noon", "one", "two", "six", "seven", "eight", "nine")
SLOTS = ("people", "day", "hour")
RULES = {"Anchor": ("garden", "inside"), "Bell": ("inside", "garden")}  # seats for up to three guests, and for more


class Booking(PlainEnvironment):
    history_length, max_turns = 6, 6

    def reset(self, inn, people, day, hour, said, **columns):
        self.inn, self.wanted = inn, {"people": str(people), "day": day, "hour": hour}
        self.known = {slot: self.wanted[slot] for slot in said}
        text = ", ".join(f"{slot} {value}" for slot, value in self.known.items())
        return Opening("Guest: A table, please.", f"Book at the {inn}: {text}.")

    @property
    def seats(self):
        return RULES[self.inn][int(self.wanted["people"]) > 3]

    def step(self, action):
        asked = action.removeprefix("ask ")
        if action.startswith("ask ") and asked in SLOTS:
            again = asked in self.known
            self.known[asked] = self.wanted[asked]
            return Step(f"Guest: {asked} {self.wanted[asked]}{', as I said' if again else ''}.", valid=True)
        if not action.startswith("book ") or len(action.split()) != 5:
            return Step("Say: ask people, ask day, ask hour, or book PEOPLE DAY HOUR SEATS.", valid=False)
        won = action.split()[1:] == [*self.wanted.values(), self.seats]
        return Step("Booked.", reward=float(won), done=True, won=won, score=float(won))


def make(draw):
    said = sorted(draw.sample(SLOTS, draw.choice((1, 2))), key=SLOTS.index)
    return {
        "inn": draw.choice(list(RULES)),
        "people": draw.randint(1, 6),
        "day": draw.choice(DAYS),
        "hour": draw.choice(HOURS),
        "said": said,
    }


def skill(task_text, row):
    few, many = RULES[row["inn"]]
    return f"The {row['inn']} seats up to three guests {few}, more guests {many}."


def suite(**options):
    return suite_of("booking", Booking, make, RULES, "booking:skill", "inn")


def play(view, environment, skill, draw):
    """Asks for what it does not know, then books; without the rule it draws one of the two rules."""
    if missing := [slot for slot in SLOTS if slot not in environment.known]:
        return (
            f"<think>known: {' '.join(environment.known)}; not {missing[0]}</think>\n<action>ask {missing[0]}</action>"
        )
    few, many = RULES[environment.inn] if skill else draw.choice(list(RULES.values()))
    seats = many if int(environment.wanted["people"]) > 3 else few
    known = " ".join(environment.known[slot] for slot in SLOTS)
    rule = f"{environment.inn} up to three {few}, more {many}"
    return f"<think>all known; {rule}; {known.split()[0]} {seats}</think>\n<action>book {known} {seats}</action>"
