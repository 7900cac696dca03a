"""The task: leave a maze of rooms. The policy sees the doors of one room; what their signs mean, the skill says."""

import random
from pathlib import Path

from alignopsd_trl.environments import Opening, PlainEnvironment, ShortPrompt, Step, Suite

SIDE = 4
MOVES = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
SIGNS = {"masons": ("iron", "oak"), "weavers": ("iron", "elm")}  # by builders: the door towards the exit, the others


class MyTask(PlainEnvironment):
    prompt = ShortPrompt()
    history_length, max_turns = 0, 12

    def reset(self, doors, start, exit, builders, **columns):
        self.towards = {tuple(room): tuple(nearer) for room, nearer in doors}
        self.room, self.exit, self.builders = tuple(start), tuple(exit), builders
        self.visits = {self.room: 1}
        return Opening(self._shown(), f"Leave the maze of the {builders}.", self._actions())

    def step(self, action):
        valid = action in self._actions()
        if valid:
            self.room = self.beyond(action.removeprefix("go "))
            self.visits[self.room] = self.visits.get(self.room, 0) + 1
        won = self.room == self.exit
        seen = self._shown() if valid else f"There is no such door. {self._shown()}"
        return Step(
            seen, reward=float(won), done=won, won=won, score=float(won), admissible=self._actions(), valid=valid
        )

    def beyond(self, way):
        down, right = MOVES[way]
        return self.room[0] + down, self.room[1] + right

    def ways(self):
        """Ways that have a door."""
        pairs = [(way, self.beyond(way)) for way in MOVES]
        return [way for way, room in pairs if self._towards(self.room, room) or self._towards(room, self.room)]

    def seen(self, way):
        return self.visits.get(self.beyond(way), 0)

    def sign(self, way):
        return SIGNS[self.builders][0 if self._towards(self.room, self.beyond(way)) else 1]

    def door(self, way):
        known = ("new", "known", "worn")[min(self.seen(way), 2)]
        return f"{self.sign(way)} {way}, {known}"

    def _towards(self, room, other):
        return self.towards.get(room) == other

    def _actions(self):
        return tuple(f"go {way}" for way in self.ways())

    def _shown(self):
        return f"Doors: {'; '.join(map(self.door, self.ways()))}."


def maze(number):
    """A dataset row. The maze grows from its exit, so that a door to a new room is that room's way out."""
    draw = random.Random(number)
    rooms = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    inside, doors = [draw.choice(rooms)], []
    while len(inside) < len(rooms):
        room, (down, right) = draw.choice(inside), draw.choice(list(MOVES.values()))
        other = room[0] + down, room[1] + right
        if other in rooms and other not in inside:
            inside.append(other)
            doors.append([other, room])
    start, builders = draw.choice(inside[1:]), draw.choice(list(SIGNS))
    return {"doors": doors, "start": start, "exit": inside[0], "builders": builders, "category": builders}


def rows(split):
    first, count = {"train": (0, 1024), "test": (10_000, 100)}[split]
    return [{"task_id": f"my_task/{split}/{number}", **maze(first + number)} for number in range(count)]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        MyTask,
        rows,
        categories=tuple(SIGNS),
        description={"side": SIDE},
        skill_bank=str(Path(__file__).with_name("my_task_skills.json")),
    )
