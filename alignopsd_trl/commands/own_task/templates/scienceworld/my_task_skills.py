"""What the teacher reads of a task and the policy does not: the way that ScienceWorld itself takes.

`hint` tells its first actions, as many as a prompt has room for. Of a longer way `next_action` tells each turn its own:
`python train.py --privileged my_task_skills:next_action`.
"""

from my_task import way

ROOM = 800  # characters of a text


def hint(task_text, row):
    told = []
    for action in way(row["variation"]):
        if len("; ".join([*told, action])) > ROOM:
            break
        told.append(action)
    return f"The way: {'; '.join(told)}"


def next_action(row, turn, trajectory):
    """The first action of the way that the episode did not take before this turn."""
    left = list(way(row["variation"]))
    for past in trajectory.turns[: turn.number]:
        if left and past.action.strip().lower() == left[0].lower():
            del left[0]
    return f"The next step: {left[0]}" if left else None
