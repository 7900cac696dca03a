"""The task my_task: questions of a dataset, each with a few tries; the teacher reads the solution."""

from functools import cache

from alignopsd_trl.environments import Opening, PlainEnvironment, Projection, Step, Suite
from alignopsd_trl.environments.adapters.questions import answer_in, check_reward, questions, right

SOURCE = ""
REWARD = "equal"  # or "math": equal in mathematics, by the package math-verify
TRIES = 2
FORM = "End with a line of the form\nAnswer: the answer alone"


class Dialogue:
    """Shows the question, the tries so far, and behind them what the teacher reads and the answer's form."""

    name = "question"

    def render(self, view, skill=""):
        messages = list(view.context)
        for past in view.history:
            said = {"role": "assistant", "content": f"Answer: {past.action or '?'}"}
            messages += [said, {"role": "user", "content": past.result}]
        asked = "\n".join(filter(None, [messages[-1]["content"], skill, FORM]))
        return [*messages[:-1], {"role": "user", "content": asked}]


class MyTask(PlainEnvironment):
    prompt = Dialogue()
    max_turns = history_length = TRIES

    def reset(self, messages, answer, **columns):
        self.answer = answer
        asked = [{"role": one["role"], "content": one["content"]} for one in messages]
        return Opening(asked[-1]["content"], asked[-1]["content"], context=asked)

    def project(self, response, admissible=()):
        answer = answer_in(response)
        return Projection(answer, valid=bool(answer))

    def step(self, action):
        won = right(action, self.answer, REWARD)
        return Step("That is wrong. Try once more.", reward=float(won), done=won, won=won, score=float(won))


@cache
def rows():
    return questions(SOURCE)


def suite():
    check_reward(REWARD)
    description = {"source": SOURCE, "reward": REWARD}
    return Suite.of_rows("my_task", MyTask, lambda split: rows()[split], description=description, skill_bank="hint")
