"""Makes a first policy of one of the six tasks that reads its skill, and the texts of `sibling_action` as well.

    python research/six_tasks/without_skills.py TASK FOLDER
    python research/six_tasks/recipe.py TASK --model FOLDER --privileged sibling_action --rounds 4 --panel_limit 100

The second command trains it under these texts; with `--method grpo` in place of them it is the comparison.
"""

import random
import sys
from functools import partial

from recipe import START, preset

from alignopsd_trl.own_task.demonstrations import demonstrate
from alignopsd_trl.own_task.players import Scripted, scripted
from alignopsd_trl.own_task.task import find_task
from alignopsd_trl.own_task.warm_start import known_tokenizer, warm_start


def demonstrations(name, task):
    """Returns turns with the skill, without it, and with a text of a better sibling."""
    play = partial(demonstrate, task, tokenizer=known_tokenizer(START.model))
    found = [
        play(Scripted(scripted(task.name, f"{name}:play"), random.Random(seed)), seed=seed, **given)
        for seed, given in enumerate(
            ({"episodes": 400}, {"episodes": 800, "privileged": "sibling_action", "skilled_share": 1.0})
        )
    ]
    print(*(one.told() for one in found), sep="\n", flush=True)
    return [row for one in found for row in one.rows]


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    chosen = preset(name)
    warm_start(demonstrations(name, find_task(name)), folder, START, settings=chosen)
