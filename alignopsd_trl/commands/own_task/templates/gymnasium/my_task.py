"""The task: an environment of Gymnasium. `seen` and `played` make its observations and actions texts; write yours."""

from pathlib import Path

import gymnasium

from alignopsd_trl.environments import Opening, PlainEnvironment, RandomStream, ShortPrompt, Step, Suite

ID = "FrozenLake-v1"
REQUEST = f"Play {ID}."
ACTIONS = ("0", "1", "2", "3")  # the names of the actions; () where actions are texts


def seen(observation):
    """An observation as text."""
    return str(observation)


def played(action):
    """The action that a text names."""
    return ACTIONS.index(action) if ACTIONS else action


class MyTask(PlainEnvironment):
    prompt = ShortPrompt(offers=True)
    history_length, max_turns = 2, 30
    world = None

    def reset(self, number, **columns):
        self.close()
        self.total, self.random = 0.0, RandomStream(number)  # some draw from the process's generators
        with self.random.lent():
            self.world = gymnasium.make(ID)
            self.shown, _ = self.world.reset(seed=number)
        return Opening(seen(self.shown), REQUEST, ACTIONS)

    def step(self, action):
        if action not in ACTIONS if ACTIONS else len(action.splitlines()) > 1:
            told = f"There is no such action. {seen(self.shown)}"
            return Step(told, score=self.total, admissible=ACTIONS, valid=False)
        with self.random.lent():
            self.shown, reward, ended, cut, info = self.world.step(played(action))
        self.total += float(reward)
        won = bool(info.get("is_success", ended and self.total > 0))
        return Step(seen(self.shown), float(reward), ended or cut, won, score=self.total, admissible=ACTIONS)

    def close(self):
        if self.world is not None:
            self.world.close()


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
        skill_bank=str(Path(__file__).with_name("my_task_skills.json")),
    )
