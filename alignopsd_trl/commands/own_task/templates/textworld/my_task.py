"""The task: quests in houses that TextWorld generates. A number makes a house, FAMILY says how large."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import textworld

from alignopsd_trl.environments import Opening, PlainEnvironment, RunningScore, ShortPrompt, Step, Suite

FAMILY = {"nb_rooms": 2}  # options of textworld.GameOptions
NUMBERS = {"train": (1, 96), "test": (10_001, 40)}  # by split: the first number, and how many
GAMES = Path(__file__).parent / "games"
FORM = "command"  # the answer's form, a line of each prompt; "" where a warm start taught it
ONE = None  # the name of a game that every number plays: a round wants several tasks
MAKING = Lock()  # TextWorld makes one game at a time
TOLD = textworld.EnvInfos(
    description=True,
    objective=True,
    admissible_commands=True,
    score=True,
    max_score=True,
    won=True,
)


class MyTask(PlainEnvironment):
    prompt = ShortPrompt(offers=True, form=FORM)
    history_length = 4
    max_turns = 12
    world = None

    @staticmethod
    def prepare_row(number, **columns):
        game(number)

    def reset(self, number, **columns):
        self.close()
        self.world = textworld.start(game(number), TOLD)
        self.state = self.world.reset()
        self.score = RunningScore(self.state.max_score)
        return Opening(plain(self.state.description), plain(self.state.objective), self.offered())

    def step(self, action):
        command = {one.lower(): one for one in self.offered()}.get(action.strip().lower())
        if command is None:  # also the interpreter's own words, such as save and undo, and several commands at once
            told = "Nothing happens: give one of the commands on offer."
            return Step(told, score=self.score.share, admissible=self.offered(), valid=False)
        self.state, _, done = self.world.step(command)
        reward = self.score.gain(self.state.score)
        seen = plain(self.state.feedback)
        return Step(
            seen, reward, done, self.state.won, self.score.share, admissible=self.offered(),
            milestone=f"score {self.state.score}" if reward > 0 else None,
        )  # fmt: skip

    def offered(self):
        return tuple(self.state.admissible_commands)

    def close(self):
        if self.world is not None:
            self.world.close()


def plain(text):
    """A text on one line, without the status line that TextWorld draws after its prompt."""
    return " ".join(text.rsplit("\n>", 1)[0].split())


def game(number):
    """The file of a game, which is generated when it is first wanted: seconds, and more for many rooms."""
    made = GAMES / (ONE or f"{number}.z8")
    if made.is_file():
        return str(made)
    GAMES.mkdir(exist_ok=True)
    options = textworld.GameOptions()
    options.seeds = number
    for name, value in FAMILY.items():
        setattr(options, name, value)
    with MAKING, TemporaryDirectory(dir=GAMES) as folder:  # another process may want the same game
        options.path = f"{folder}/{number}.z8"
        textworld.make(options)
        for kind in (".ni", ".json", ".z8"):  # the .z8 last: it says that the game is whole
            os.replace(f"{folder}/{number}{kind}", made.with_suffix(kind))
    return str(made)


def rows(split):
    first, count = NUMBERS[split]
    return [{"task_id": f"my_task/{split}/{one}", "category": "house", "number": first + one} for one in range(count)]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        MyTask,
        rows,
        categories=("house",),
        description={"family": FAMILY, "textworld": textworld.version.__version__},
        skill_bank="my_task_skills:hint",
    )
