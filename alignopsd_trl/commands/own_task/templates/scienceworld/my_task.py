"""The task: one of ScienceWorld's, in its own splits. Each environment is a Java process of 100 to 350 MB."""

import json
import os
from pathlib import Path
from threading import Lock

import scienceworld

from alignopsd_trl.environments import Opening, PlainEnvironment, RunningScore, ShortPrompt, Step, Suite

TASK = "find-non-living-thing"
EASIER = "easy"  # ScienceWorld's simplifications, such as open doors; "" for none
OPENING = "open door "  # an action of its ways that does nothing then
# Else each takes gigabytes before it frees any, and twice as long to start.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1")
FORM = "action"  # the answer's form, a line of each prompt; "" where a warm start taught it
WAYS, FINDING = Path(__file__).parent / "ways", Lock()
IDLE = []  # worlds that nobody uses now, since Java takes seconds to start
FINDERS = []  # such that found a way, whose resets are slow from then on
DECIDING = ("focus on", "reset task", "eat ")  # beginnings of actions that chance does not take
SPLITS = {"train": range(1, 2), "test": range(3, 4)}  # of ScienceWorld's variations


class MyTask(PlainEnvironment):
    prompt = ShortPrompt(form=FORM)
    history_length = 4
    max_turns = 16
    concurrent = True  # a step waits for Java
    openings_may_differ = True  # in the order of equal things, which depends on what their world played before
    most_alive = 4

    @staticmethod
    def prepare_row(variation, **columns):
        way(variation)

    world = None  # until an episode begins, so that several start at once

    def reset(self, variation, **columns):
        self.world = self.world or started(IDLE)
        self.variation = variation
        self.world.load(TASK, variation, EASIER)
        seen, info = self.world.reset()
        self.score, self.reached = RunningScore(100, info["score"]), self.goals()
        return Opening(seen, info["taskDesc"].replace("Task Description:", "").strip())

    def step(self, action):
        if len(action.splitlines()) > 1 or action.lower().split() == ["reset", "task"]:  # that takes steps back
            told = "One action is one line, and none begins again."
            return Step(told, score=max(self.score.share, 0.0), valid=False)
        seen, _, done, info = self.world.step(action)
        valid = not seen.startswith(("No known action", "Ambiguous request"))
        if seen.startswith("You move to "):
            seen += f"\n{info['look']}"  # else a turn goes by for looking around
        reached, before = self.goals(), self.reached
        self.reached = reached
        return Step(
            seen, self.score.gain(info["score"]), done, info["score"] == 100, max(self.score.share, 0.0), valid=valid,
            milestone="; ".join(sorted(reached - before)) or None,
        )  # fmt: skip

    def goals(self):
        """The sub-goals that are reached."""
        return {line.split("\t")[-1] for line in self.world.get_goal_progress().splitlines() if "\ttrue\t" in line}

    def possible(self):
        """Actions that ScienceWorld takes now, without those that decide the task."""
        every = sorted(self.world.server.getValidActionObjectCombinations())
        return [one for one in every if not one.startswith(DECIDING)]

    def close(self):
        if self.world is not None:
            self.world.get_task_names()  # fails if Java died, so that nobody gets that world
            IDLE.append(self.world)


class World(scienceworld.ScienceWorldEnv):
    """ScienceWorld without the list of all valid actions, which would be most of the time of each step."""

    def get_valid_action_object_combinations(self):
        return []


def started(idle):
    """One of the idle worlds, or a new one. Its episodes end by max_turns."""
    try:
        return idle.pop()
    except IndexError:
        return World("", envStepLimit=1000)


def way(variation):
    """The actions that ScienceWorld itself takes: found once, in seconds, and kept in a file."""
    file = WAYS / f"{variation}.json"
    with FINDING:
        if not file.is_file():
            WAYS.mkdir(exist_ok=True)
            world = started(FINDERS)
            world.load(TASK, variation, EASIER, generateGoldPath=True)
            partial = file.with_suffix(f".{os.getpid()}")
            path = [one for one in world.get_gold_action_sequence() if not (EASIER and one.startswith(OPENING))]
            partial.write_text(json.dumps(path), encoding="utf-8")
            os.replace(partial, file)  # another process may want the same way
            FINDERS.append(world)
        return json.loads(file.read_text(encoding="utf-8"))


def rows(split):
    return [{"task_id": f"my_task/{split}/{one}", "category": TASK, "variation": one} for one in SPLITS[split]]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        MyTask,
        rows,
        categories=(TASK,),
        description={"task": TASK, "easier": EASIER, "scienceworld": scienceworld.__version__},
        skill_bank="my_task_skills:hint",
    )
