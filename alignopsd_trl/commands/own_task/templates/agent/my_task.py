"""The task: find a number by asking. The agent is a program with a loop of its own; each of its requests is a turn."""

import re

from alignopsd_trl.environments import Suite
from alignopsd_trl.environments.adapters import AgentEnvironment

HIGHEST, GUESSES = 31, 5


async def agent(row, client):
    """Any program that asks for chat completions, by `client.openai`, `client.url` or, as here, `client.chat`."""
    low, high = 1, HIGHEST
    messages = [{"role": "user", "content": f"Find the number between {low} and {high}. Answer with one number."}]
    for _ in range(GUESSES):
        completion = await client.chat(messages=messages)
        said = completion["choices"][0]["message"]["content"].rpartition("</think>")[2].strip()
        numbers = re.findall(r"\d+", said)
        guess = int(numbers[-1]) if numbers else -1
        if guess == row["number"]:
            return 1.0
        if low <= guess < row["number"]:
            low = guess + 1
        elif row["number"] < guess <= high:
            high = guess - 1
        no = f"No. It is between {low} and {high}."
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": no}]
    return 0.0


def rows(split):
    numbers = {"train": range(1, HIGHEST + 1, 2), "test": range(2, HIGHEST + 1, 2)}[split]
    return [{"task_id": f"my_task/{split}/{number}", "number": number} for number in numbers]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        AgentEnvironment(agent, format="text", success=lambda row, reward: reward == 1.0),  # no tools: text
        rows,
        description={"highest": HIGHEST},
        skill_bank="my_task_skills:hint",
    )
