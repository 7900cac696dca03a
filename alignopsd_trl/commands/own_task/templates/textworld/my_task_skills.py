"""What the teacher reads of a house and the policy does not: the commands that win its quest."""

import json
from pathlib import Path

from my_task import game

ROOM = 800  # characters of a text


def hint(task_text, row):
    made = json.loads(Path(game(row["number"])).with_suffix(".json").read_text(encoding="utf-8"))
    way = made["metadata"]["walkthrough"]
    while len("; ".join(way)) > ROOM:
        del way[-1]
    return f"The way: {'; '.join(way)}"
