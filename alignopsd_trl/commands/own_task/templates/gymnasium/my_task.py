"""The task: an environment of Gymnasium. `seen` and `played` make its observations and actions texts; write yours."""

import re
from importlib import import_module

import gymnasium

from alignopsd_trl.environments import Opening, PlainEnvironment, RandomStream, ShortPrompt, Step, Suite

ID = "FrozenLake-v1"
OPTIONS = {}  # of gymnasium.make, such as {"is_slippery": False}
REQUEST = f"Play {ID}."
ACTIONS = ("0", "1", "2", "3")  # the names of the actions; () where actions are texts
GOAL = 1.0  # won: an episode that ends by itself with at least this reward in its last step; None: see THRESHOLD
THRESHOLD = None  # won: an episode that is over with at least this reward in all
FORM = "action"  # the answer's form, a line of each prompt; "" where a warm start taught it
DRAWN = False  # whether the policy also sees how the world draws itself in letters
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def seen(observation):
    """An observation as text."""
    return str(observation)


def played(action):
    """The action that a text names."""
    return ACTIONS.index(action) if ACTIONS else action


class MyTask(PlainEnvironment):
    prompt = ShortPrompt(offers=True, form=FORM)
    history_length = 2
    max_turns = 100
    world = None

    @staticmethod
    def prepare_row(number, **columns):
        import_module("my_task_skills").told(number)  # a search may take seconds

    def reset(self, number, **columns):
        self.close()
        self.total, self.random = 0.0, RandomStream(number)  # some draw from the process's generators
        with self.random.lent():
            self.world = gymnasium.make(ID, **OPTIONS, **({"render_mode": "ansi"} if DRAWN else {}))
            self.shown, _ = self.world.reset(seed=number)
        return Opening(self.told(), REQUEST, ACTIONS)

    def step(self, action):
        if action not in ACTIONS if ACTIONS else len(action.splitlines()) > 1:
            told = f"There is no such action. {self.told()}"
            return Step(told, score=self.score(), admissible=ACTIONS, valid=False)
        with self.random.lent():
            self.shown, reward, ended, cut, info = self.world.step(played(action))
        self.total += float(reward)
        won = ended and reward >= GOAL if GOAL is not None else (ended or cut) and self.total >= THRESHOLD
        won = bool(info.get("is_success", won))
        return Step(self.told(), float(reward), ended or cut, won, score=float(won) or self.score(), admissible=ACTIONS)

    def score(self):
        """The rewards so far as a share of those that win, from 0 to 1: tables print it in percent."""
        return min(max(self.total / max(THRESHOLD or 1.0, 1.0), 0.0), 1.0)

    def told(self):
        if not DRAWN:
            return seen(self.shown)
        own = re.sub(r"\x1b\[(\d)(\d)(?:;1)?m(.*?)\x1b\[0m", coloured, self.world.render())
        return "\n".join([f"Place {seen(self.shown)}:", *filter(None, map(str.strip, own.splitlines()))])

    def close(self):
        if self.world is not None:
            self.world.close()


def coloured(letter):
    """A coloured letter in words: in brackets where its ground is coloured."""
    return f"[{letter[3]}]" if letter[1] == "4" else f"{letter[3]}({COLOURS[int(letter[2])]})"


def rows(split):
    first, count = {"train": (0, 1024), "test": (10_000, 100)}[split]
    return [{"task_id": f"my_task/{split}/{one}", "category": ID, "number": first + one} for one in range(count)]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        MyTask,
        rows,
        categories=(ID,),
        description={"id": ID, "gymnasium": gymnasium.__version__},
        skill_bank="my_task_skills:hint",
    )
