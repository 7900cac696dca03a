"""The scripted player: under the skill the right answer, without it an answer to another question of the dataset."""

import reasoning_gym


def play(view, environment, skill, draw):
    """The response to one prompt. Its thought says nothing of the way to the answer: write one that does."""
    other = reasoning_gym.create_dataset(
        environment.entry["metadata"]["source_dataset"], seed=draw.randrange(999), size=1
    )
    answer = environment.entry["answer"] if skill else other[0]["answer"]
    return f"<think>{answer}</think>\n<action>{answer}</action>"
