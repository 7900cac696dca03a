"""The task: questions of reasoning-gym. A number makes a question; one answer is one episode."""

import reasoning_gym

from alignopsd_trl.environments import Opening, PlainEnvironment, RandomStream, ShortPrompt, Step, Suite

NAME = "basic_arithmetic"
OPTIONS = {}  # of the dataset's configuration, such as its difficulty
FORM = "answer"  # the answer's form, a line of each prompt; "" where a warm start taught it


class MyTask(PlainEnvironment):
    prompt = ShortPrompt(form=FORM)
    history_length, max_turns = 0, 1

    def reset(self, number, **columns):
        self.random = RandomStream(number)  # some datasets draw from the process's generators
        with self.random.lent():
            self.source, self.entry = question(number)
        return Opening("", self.entry["question"])

    def step(self, action):
        with self.random.lent():
            score = float(self.source.score_answer(action, self.entry))
        return Step("", score, done=True, won=score >= 1, score=score, info={"answer": str(self.entry["answer"])})


def question(number):
    source = reasoning_gym.create_dataset(NAME, seed=number, size=1, **OPTIONS)
    return source, source[0]


def rows(split):
    first, count = {"train": (0, 1024), "test": (10_000, 100)}[split]
    return [{"task_id": f"my_task/{split}/{one}", "category": NAME, "number": first + one} for one in range(count)]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        MyTask,
        rows,
        categories=(NAME,),
        description={"dataset": NAME, "options": OPTIONS},
        skill_bank="my_task_skills:hint",
    )
