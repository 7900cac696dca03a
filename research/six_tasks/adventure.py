"""A text adventure: find the key that opens the chest. Keys lie in rooms, one can be carried. Each castle's chest takes
a key of one metal, which nothing says."""

from generated import suite_of

from alignopsd_trl.environments import Opening, PlainEnvironment, Step

ROOMS = ("kitchen", "library", "cellar", "tower", "stable", "chapel", "pantry", "study")
METALS = ("brass", "silver", "iron")
LOCKS = {"Hightower": "silver", "Lowmoor": "brass"}


class Adventure(PlainEnvironment):
    history_length, max_turns = 2, 10

    def reset(self, castle, keys, **columns):
        self.castle, self.lock, self.carried, self.keys = castle, LOCKS[castle], "", dict(keys)
        self.room, self.left = "hall", ""  # where it is, and which of the rooms it left last
        self.ways = {"hall": tuple(self.keys)} | {room: ("hall",) for room in self.keys}
        return Opening(self._shown(), f"Open the chest of {castle}.", self._actions())

    def step(self, action):
        valid, verb, last = action in self._actions(), action.split(" ")[0], action.split(" ")[-1]
        opened = tried = False
        if valid and verb == "go":
            self.left = self.room if self.room in self.keys else self.left
            self.room = last
        elif valid and verb == "take":
            self.carried, self.keys[self.room] = self.keys[self.room], self.carried
        elif valid:
            opened, tried = self.carried == self.lock, True
        said = "It opens. " if opened else "The key breaks. " if tried else "" if valid else "You can't. "
        return Step(
            said + self._shown(),
            reward=float(opened),
            done=tried,
            won=opened,
            score=float(opened),
            admissible=self._actions(),
            valid=valid,
        )

    def _actions(self):
        key = self.keys.get(self.room, "")
        return (
            *(f"go {room}" for room in self.ways[self.room]),
            *([f"take {key}"] if key else []),
            *(["open chest"] if self.carried and self.room == "hall" else []),
        )

    def _shown(self):
        key = self.keys.get(self.room, "")
        lies = f" A {key} key lies here." if key else ""
        return (
            f"You are in the {self.room}.{lies} You carry {f'the {self.carried} key' if self.carried else 'nothing'}."
        )


def make(draw):
    rooms, keys = draw.sample(ROOMS, len(METALS)), draw.sample(METALS, len(METALS))
    return {"castle": draw.choice(list(LOCKS)), "keys": list(zip(rooms, keys, strict=True))}


def skill(task_text, row):
    return f"The chest of {row['castle']} opens with the {LOCKS[row['castle']]} key."


def suite(**options):
    return suite_of("adventure", Adventure, make, LOCKS, "adventure:skill", "castle")


def play(view, environment, skill, draw):
    """Looks through the rooms in their order for the key; without the skill it holds any key that it meets for the
    right one, as often as not."""
    here, carried, rooms = environment.keys.get(environment.room, ""), environment.carried, list(environment.keys)
    guess = carried or (here if here and draw.random() < 0.6 else draw.choice([one for one in METALS if one != here]))
    wanted = environment.lock if skill else guess
    if carried == wanted:
        done, action = f"carry {carried}", "open chest" if environment.room == "hall" else "go hall"
    elif here == wanted:
        done, action = f"here {here}: take", f"take {here}"
    elif environment.room != "hall":
        done, action = f"here {here}: leave", "go hall"
    else:
        following = rooms[(rooms.index(environment.left) + 1) % len(rooms)] if environment.left else rooms[0]
        done, action = f"{following} after {environment.left or 'nothing'}", f"go {following}"
    return f"<think>{environment.castle} takes {wanted}, {done}</think>\n<action>{action}</action>"
