"""The task: find a number by asking. A class of TRL's convention: each public method is a tool."""

from alignopsd_trl.environments import Suite
from alignopsd_trl.environments.adapters import ToolEnvironment

HIGHEST = 15


class MyTask:
    def reset(self, number: int, **columns) -> str:
        self.number, self.low, self.high, self.done = number, 0, HIGHEST, False
        return f" It is between 0 and {HIGHEST}."

    def guess(self, number: int) -> str:
        """Asks for a number.

        Args:
            number: The one that it may be.
        """
        self.done = number == self.number
        if self.done:
            return "It is."
        if number < self.number:
            self.low = max(self.low, number + 1)
        else:
            self.high = min(self.high, number - 1)
        return f"No. It is between {self.low} and {self.high}."

    def get_reward(self) -> float:
        return float(self.done)


def rows(split):
    numbers = {"train": range(0, HIGHEST + 1, 2), "test": range(1, HIGHEST + 1, 2)}[split]
    asked = [{"role": "user", "content": "Find the number."}]
    return [{"task_id": f"my_task/{split}/{number}", "prompt": asked, "number": number} for number in numbers]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        ToolEnvironment(MyTask, success=lambda environment, reward: reward == 1.0, max_turns=5),
        rows,
        description={"highest": HIGHEST},
        skill_bank="my_task_skills:hint",
    )
