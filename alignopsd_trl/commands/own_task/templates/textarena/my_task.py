"""The task: a game of TextArena. A number chooses the deal, so the siblings of a task play the same game."""

import sys
from importlib import import_module

import textarena

from alignopsd_trl.environments import Opening, PlainEnvironment, RandomStream, ShortPrompt, Step, Suite

GAME = "GuessTheNumber-v0"
SHOWN = slice(None)  # lines of the rules in the prompt: each token costs time in each turn, and examples teach much
FORM = "[move]"  # the answer's form, a line of each prompt; "" where a warm start taught it
OWN = textarena.ObservationType.PLAYER_ACTION  # what the player said, which the prompt shows anyway


class MyTask(PlainEnvironment):
    prompt = ShortPrompt(form=FORM)
    history_length = 10
    max_turns = 30

    @staticmethod
    def prepare_row(number, **columns):
        import_module("my_task_skills").told(number)  # a search may take seconds

    def reset(self, number, **columns):
        self.random = RandomStream(number)  # games draw from the process's generators, some even when they are made
        with self.random.lent():
            self.game = textarena.make(f"{GAME}-raw")  # each message once; other wrappers repeat the past
            vars(sys.modules[type(self.game).__module__])["print"] = print_nothing  # some games print their deals
            self.game.reset(num_players=1, seed=number)
        rules, *board = self.said()
        return Opening("\n".join(board), "\n".join(rules.splitlines()[SHOWN]))

    def step(self, action):
        if len(action.splitlines()) > 1:
            return Step("One move is one line.", valid=False, metrics={"wrong_move": 1.0})
        with self.random.lent():
            done, _ = self.game.step(action if "[" in action else f"[{action}]")
        rewards, info = self.game.close() if done else ({}, {})
        reward = rewards[0] if rewards and not isinstance(rewards[0], str) else 0.0  # some give a text for a wrong move
        wrong = bool(self.game.state.error_count or info and info[0]["invalid_move"])
        told = {"reason": info[0].get("reason", "")} if done else {}
        won = done and reward >= 1
        return Step(
            "\n".join(self.said()), reward, done, won, reward, valid=not wrong,
            metrics={"wrong_move": float(wrong)}, info=told,
        )  # fmt: skip

    def said(self):
        """The game's messages since the last call."""
        _, messages = self.game.get_observation()
        return [str(text) for _, text, kind in messages if kind is not OWN]


def print_nothing(*said, **options):
    pass


def rows(split):
    first, count = {"train": (0, 1024), "test": (10_000, 100)}[split]
    return [{"task_id": f"my_task/{split}/{one}", "category": GAME, "number": first + one} for one in range(count)]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        MyTask,
        rows,
        categories=(GAME,),
        description={"game": GAME, "textarena": textarena.__version__},
        skill_bank="my_task_skills:hint",
    )
