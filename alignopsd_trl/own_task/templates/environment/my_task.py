"""The task: leave a maze of rooms. The policy sees the doors of one room, and where the exit lies."""

import random
from pathlib import Path

from datasets import Dataset

from alignopsd_trl.environments import Opening, PlainEnvironment, Step, Suite, TaskPanel

SIDE = 4
MOVES = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


class MyTask(PlainEnvironment):
    history_length, max_turns = 1, 10

    def reset(self, doors, start, exit, **columns):
        self.doors = {frozenset(map(tuple, door)) for door in doors}
        self.room, self.exit = tuple(start), tuple(exit)
        self.visits = {self.room: 1}
        category = columns["category"]
        return Opening(self._seen(), f"Leave the maze. The exit is {category}.", self._actions(), category=category)

    def step(self, action):
        valid = action in self._actions()
        if valid:
            self.room = self.beyond(action.removeprefix("go "))
            self.visits[self.room] = self.visits.get(self.room, 0) + 1
        won = self.room == self.exit
        seen = self._seen() if valid else f"There is no such door. {self._seen()}"
        return Step(
            seen, reward=float(won), done=won, won=won, score=float(won), admissible=self._actions(), valid=valid
        )

    def beyond(self, direction):
        down, right = MOVES[direction]
        return self.room[0] + down, self.room[1] + right

    def distance(self, room):
        return abs(self.exit[0] - room[0]) + abs(self.exit[1] - room[1])

    def ways(self):
        """Open doors, the most promising first: new rooms before known ones, nearer to the exit before farther."""
        open_ways = [way for way in MOVES if frozenset((self.room, self.beyond(way))) in self.doors]
        return sorted(
            open_ways, key=lambda way: (self.visits.get(self.beyond(way), 0), self.distance(self.beyond(way)))
        )

    def _actions(self):
        return tuple(f"go {way}" for way in MOVES if way in self.ways())

    def _seen(self):
        return f"The exit is {self.distance(self.room)} rooms away. Doors: {'; '.join(map(self.door, self.ways()))}."

    def door(self, way):
        room = self.beyond(way)
        known = ("new", "known", "worn")[min(self.visits.get(room, 0), 2)]
        return f"{known} and {'nearer' if self.distance(room) < self.distance(self.room) else 'farther'}: {way}"


def maze(number):
    """A dataset row: every room is reached from every other one in one way."""
    draw = random.Random(number)
    rooms = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    inside, doors = [draw.choice(rooms)], []
    while len(inside) < len(rooms):
        room, (down, right) = draw.choice(inside), draw.choice(list(MOVES.values()))
        other = room[0] + down, room[1] + right
        if other in rooms and other not in inside:
            inside.append(other)
            doors.append([room, other])
    start, exit = draw.sample(rooms, 2)
    far = abs(start[0] - exit[0]) + abs(start[1] - exit[1]) > 2
    return {"doors": doors, "start": start, "exit": exit, "category": "far" if far else "near"}


def rows(split):
    first, count = {"train": (0, 256), "test": (10_000, 100)}[split]
    return [{"task_id": f"my_task/{split}/{number}", **maze(first + number)} for number in range(count)]


def suite(**options):
    return Suite(
        name="my_task",
        factory=MyTask,
        tasks=lambda split: Dataset.from_list(rows(split)),
        panel=lambda name: TaskPanel.of("my_task", name, rows(name)),
        categories=("near", "far"),
        description={"side": SIDE},
        skill_bank=str(Path(__file__).with_name("my_task_skills.json")),
    )
