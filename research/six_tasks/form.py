"""A form is filled from a letter, a field a turn. Each office wants one of the letter's two dates, and does not say
which."""

from generated import suite_of

from alignopsd_trl.environments import Opening, PlainEnvironment, Step

NAMES = ("Ada Berg", "Ivo Lund", "Mia Roth", "Tom Vale", "Una Hart")
TOWNS = ("Arden", "Corby", "Elmet", "Lund", "Oakham")
MONTHS = ("March", "May", "June", "August")
OFFICES = {"tax office": "letter", "land office": "sale"}
FIELDS = ("name", "town", "date")


class Form(PlainEnvironment):
    history_length, max_turns = 0, 4

    def reset(self, office, name, town, letter, sale, **columns):
        self.dates, self.office = {"letter": letter, "sale": sale}, office
        self.right = {"name": name, "town": town, "date": self.dates[OFFICES[office]]}
        self.text = f"{letter}. I sold my house in {town} on {sale}. Yours, {name}"
        self.filled = {}
        return Opening(self._shown(), f"Fill the form of the {office}: name, town, date.")

    def step(self, action):
        field, colon, value = action.partition(": ")
        valid = bool(colon) and field in FIELDS and field not in self.filled
        if valid:
            self.filled[field] = value
        done = len(self.filled) == len(FIELDS)
        right = sum(self.filled.get(one) == self.right[one] for one in FIELDS)
        won = done and right == len(FIELDS)
        return Step(
            self._shown() if valid else f"Write FIELD: VALUE for an empty field. {self._shown()}",
            reward=float(won),
            done=done,
            won=won,
            score=right / len(FIELDS) if done else 0.0,
            valid=valid,
        )

    def _shown(self):
        empty = [field for field in FIELDS if field not in self.filled]
        return f"Letter: {self.text}. Empty: {', '.join(empty)}."


def make(draw):
    dates = [f"{day} {draw.choice(MONTHS)}" for day in draw.sample(range(1, 29), 2)]
    return {
        "office": draw.choice(list(OFFICES)),
        "name": draw.choice(NAMES),
        "town": draw.choice(TOWNS),
        "letter": dates[0],
        "sale": dates[1],
    }


def skill(task_text, row):
    return f"The {row['office']} wants the date of the {OFFICES[row['office']]}."


def suite(**options):
    return suite_of("form", Form, make, OFFICES, "form:skill", "office")


def play(view, environment, skill, draw):
    """Fills the first empty field; without the rule it draws one of the two dates."""
    field = next(one for one in FIELDS if one not in environment.filled)
    value, kind = environment.right[field], ""
    if field == "date":
        kind = OFFICES[environment.office] if skill else draw.choice(list(environment.dates))
        value, kind = environment.dates[kind], f" of the {kind} for the {environment.office}"
    return f"<think>{field} is empty{kind}: {value}</think>\n<action>{field}: {value}</action>"
