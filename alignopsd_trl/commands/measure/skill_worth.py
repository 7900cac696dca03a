"""``alignopsd measure --each_skill``: what each skill of a bank is worth, as success with it alone minus success
without any, paired by task.

A skill is played alone on tasks that retrieve it. Left out of its block instead, it would seem worth nothing wherever
another skill says the same. Skills share the episodes without a skill. After each of `ROUNDS` rounds the skills that
are decided leave, and the others share the episodes that are left.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pandas as pd
import torch

from alignopsd_trl.commands.measure.measurement import cpu_seconds
from alignopsd_trl.commands.measure.metrics import EVERYTHING, Success, successes
from alignopsd_trl.commands.measure.setup import prepare
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import write_json, write_text
from alignopsd_trl.common.progress import markdown
from alignopsd_trl.common.statistics import Interval, for_several
from alignopsd_trl.rollout.episode import SkillSource, episode_seed, episode_seeds, no_skills
from alignopsd_trl.rollout.monte_carlo.tree import outcome
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.skills import Retrieved, SkillBank, render
from alignopsd_trl.skills.schema import Mistake, Skill

HARMS, UNTOLD, HELPS = "harms", "not told from none", "helps"
VERDICTS = (HARMS, UNTOLD, HELPS)
WHOLE = "the bank"  # all skills that a task retrieves, as many as fit
PLAIN = 2  # episodes of a task without a skill; several skills share them
ROUNDS = 3
FEWEST = 8  # tasks that a verdict needs

Count = Callable[[str], int]
"""The number of a text's tokens."""
Asked = tuple[str, str | None, str | None]
"""What retrieval reads: text, key and data source of a task."""
Outcomes = dict[str, list[float]]
"""Task -> the outcomes of its episodes."""


@dataclass
class Bench:
    """Plays tasks with and without skills.

    Args:
        player: of the policy; its own skills are not used.
        rows: the tasks by ``task_id``, in the order of play.
        value: what counts, ``"success"`` or ``"reward"``.

    ``plain`` holds outcomes without a skill, ``asked`` what the openings said, ``category`` the tasks' categories,
    ``failed`` the messages of episodes whose environment failed; they are left out.
    """

    player: Player
    rows: Mapping[str, Mapping[str, Any]]
    slots: int
    value: str = "success"
    seed: int = 0
    plain: Outcomes = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    category: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def open(self) -> Bench:
        """Plays all tasks `PLAIN` times without a skill, and returns itself. Raises `ValueError` if every episode
        fails, or success is unknown."""
        self.plain = self.play([(task, "", no_skills) for task in self.rows for _ in range(PLAIN)], 0)[""]
        if not self.plain:
            raise ValueError(f"no episode could be played; the first: {self.failed[0]}")
        return self

    def play(self, wanted: Iterable[tuple[str, str, SkillSource]], number: int) -> dict[str, Outcomes]:
        """Plays one episode for each (task, skill's id, skill). Returns the outcomes by id and task. Equal tasks have
        equal seeds with every skill. All skills are played side by side, as many small batches would take twice the
        time."""
        found: dict[str, Outcomes] = defaultdict(lambda: defaultdict(list))
        early, left = self.value == "success", iter(wanted)
        torch.manual_seed(episode_seed(self.seed, number) % 2**31)
        while part := list(islice(left, self.slots)):
            dealt = _Dealt(part, self.asked)
            player = replace(self.player, skills=dealt, skills_in_rollout=True, until_lost=early)
            tasks = [task for task, _, _ in part]
            seeds = [episode_seeds(task, self.seed, 0) for task in tasks]
            for one in player.play([self.rows[task] for task in tasks], seeds, tasks):
                if one.failed:
                    self.failed.append(one.message)
                    continue
                self.category[one.task] = one.category
                found[one.skill_ids[0]][one.task].append(outcome(one, self.value))
        return found


class _Dealt:
    """Deals each episode its skill. A task's episodes are opened in order; which skill one got stands in its
    ``skill_ids``, so that an episode that fails at its opening mixes nothing up."""

    reads_row = True

    def __init__(self, part: Iterable[tuple[str, str, SkillSource]], asked: dict[str, Asked]):
        self._left: dict[str, list[tuple[str, SkillSource]]] = defaultdict(list)
        self._asked = asked
        for task, name, skill in part:
            self._left[task].append((name, skill))

    def __call__(self, text: str, key: str | None, source: str | None, row: Mapping[str, Any]) -> tuple[str, tuple]:
        self._asked[row["task_id"]] = text, key, source
        name, skill = self._left[row["task_id"]].pop(0)
        return skill(text, key, source)[0], (name,)


@dataclass
class Worth:
    """What one skill is worth, or the whole bank (`WHOLE`).

    Args:
        tokens: of this line; of the blocks on average for the bank.
        source: shows it and nothing else.
        retrieved: the tasks that retrieve it, in the order of play.
        shown: how many of their blocks have room for it.

    ``outcomes`` are of the episodes with it, ``success`` of all tasks played and by category.
    """

    id: str
    text: str
    tokens: float
    source: SkillSource = field(repr=False)
    retrieved: Sequence[str] = field(repr=False)
    shown: int
    outcomes: Outcomes = field(default_factory=dict, repr=False)
    success: dict[str, Success] = field(default_factory=dict)
    verdict: str = UNTOLD
    played: int = 0

    @property
    def lift(self) -> float:
        return self.success[EVERYTHING].lift.value if self.success else 0.0

    def next_tasks(self, share: int) -> Sequence[str]:
        return self.retrieved[self.played :][:share] if self.verdict == UNTOLD else ()

    def judge(self, bench: Bench, looks: int) -> None:
        """Computes success, and the verdict by the lift's interval, widened for ``looks`` intervals."""
        self.success = successes(bench.plain, self.outcomes, bench.category, bench.value)
        if self.success and (tasks := self.success[EVERYTHING].tasks) >= FEWEST:
            lift = for_several(self.success[EVERYTHING].lift, looks, tasks)
            self.verdict = HELPS if lift.low > 0 else HARMS if lift.high < 0 else UNTOLD


def worths(bank: SkillBank, asked: Mapping[str, Asked], count: Count, budget: int) -> list[Worth]:
    """Lists the bank as a whole and its skills, before any is played."""

    def block(text: str, key: str | None, source: str | None) -> tuple[str, tuple[str, ...]]:
        shown = render(bank.retrieve(text, key, source), count, budget)
        return shown.text, shown.ids

    found = {task: bank.retrieve(*one).ids for task, one in asked.items()}
    blocks = [block(*one) for one in asked.values()]
    items = [*bank.general, *(skill for kind in bank.task_types for skill in kind.skills), *bank.mistakes]
    tokens = sum(count(text) for text, _ in blocks) / max(len(blocks), 1)
    listed = [Worth(WHOLE, f"{len(items)} skills", tokens, block, list(asked), len(asked))]
    for item in items:
        tasks, shown = [task for task, ids in found.items() if item.id in ids], [item.id in ids for _, ids in blocks]
        listed.append(Worth(item.id, item.line[2:], count(item.line), alone(item, count, budget), tasks, sum(shown)))
    return listed


def alone(item: Skill | Mistake, count: Count, budget: int) -> SkillSource:
    """Shows one skill for every task."""
    one = Retrieved((), (), (), (), (item,)) if isinstance(item, Mistake) else Retrieved((), (item,), (0.0,), (), ())
    text = render(one, count, budget).text
    return lambda task_text, task_key, data_source: (text, (item.id,))


def measure(bench: Bench, listed: Sequence[Worth], episodes: int, told: Callable[[str], None] = print) -> list[Worth]:
    """Plays the skills, ``episodes`` in all, and returns them with what they are worth, harmful ones first."""
    left = episodes
    for number in range(1, ROUNDS + 1):
        undecided = [one for one in listed if one.next_tasks(1)]
        share = left // (ROUNDS + 1 - number) // max(len(undecided), 1)
        wanted = [(task, one.id, one.source) for one in undecided for task in one.next_tasks(share)]
        found = bench.play(wanted, number)
        for one in undecided:
            one.played += len(one.next_tasks(share))
            one.outcomes |= found[one.id]
            one.judge(bench, ROUNDS * len(listed))
        left -= len(wanted)
        told(f"round {number} of {ROUNDS}: {sum(one.verdict != UNTOLD for one in listed)} of {len(listed)} decided")
    return sorted(listed, key=lambda one: (VERDICTS.index(one.verdict), one.lift))


UNKNOWN = Interval(float("nan"))
UNPLAYED = {EVERYTHING: Success(0, UNKNOWN, UNKNOWN, UNKNOWN)}
MOST_SHOWN = 60  # characters of a skill on the page
HEAD = "skill,text,tokens,tasks that retrieve it,with room for it,category,played,without,with,lift,verdict".split(",")


def check(given: argparse.Namespace, shown: str) -> dict[str, Any]:
    """Measures a bank, prints the page, writes the files and returns the content of the JSON file."""
    with setup():
        session = prepare(given, skilled=True)
        bank = SkillBank.load(given.skill_bank, session.encoder)

    def count(text: str) -> int:
        return len(session.tokenizer(text, add_special_tokens=False)["input_ids"])

    def told(line: str) -> None:
        print(f"measure: {line}, {cpu_seconds():.0f} CPU seconds", file=sys.stderr, flush=True)

    with closing(session.player.environments):
        with setup():
            rows = {row["task_id"]: row for row in session.draw_tasks(min(given.tasks, len(session.tasks)))}
            bench = Bench(session.player, rows, given.slots, given.value, given.seed).open()
        listed = worths(bank, bench.asked, count, session.config.skill_budget)
        found = measure(bench, listed, given.episodes, told)
    content = {
        "command": shown,
        "checksum": bank.checksum,
        "tasks": len(bench.rows),
        "plain_episodes": sum(map(len, bench.plain.values())),
        "episodes": sum(one.played for one in found),
        "failed": len(bench.failed),
        "cpu_seconds": cpu_seconds(),
        "never_retrieved": [one.id for one in found if not one.retrieved],
        "skills": rows_of(found),
    }
    print(page(content))
    write_json(given.output / "skills.json", content)
    write_text(given.output / "skills_worth.csv", pd.DataFrame(content["skills"]).to_csv(index=False))
    return content


def rows_of(found: Sequence[Worth]) -> list[dict[str, Any]]:
    """Returns a row for each skill and category, `EVERYTHING` first."""
    rows = []
    for one in found:
        about = {"skill": one.id, "text": one.text, "tokens": one.tokens}
        about |= {"retrieved": len(one.retrieved), "room": one.shown}
        for category, own in (one.success or UNPLAYED).items():
            means = {"without": own.without.value, "with": own.skilled.value}
            row = {**about, "category": category, "played": own.tasks, **means, **vars(own.lift)}
            rows.append(row | {"verdict": one.verdict})
    return rows


def page(content: Mapping[str, Any]) -> str:
    facts = (
        "{tasks} training tasks, {plain_episodes} episodes without a skill, {episodes} with one, or with all that a "
        "task retrieves; {failed} more failed. {cpu_seconds:.0f} CPU seconds."
    ).format(**content)
    lines = ["# What each skill is worth", "", f"    {content['command']}", "", facts, ""]
    lines += [*markdown(HEAD, map(_cells, content["skills"])), ""]
    lines += ["Intervals: 95 %, resampled tasks; the verdict allows for the number of skills and rounds.", ""]
    if content["never_retrieved"]:
        lines += [f"No task retrieves {', '.join(content['never_retrieved'])}.", ""]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[object]:
    first = [row["skill"], row["text"][:MOST_SHOWN], f"{row['tokens']:.0f}", row["retrieved"], row["room"]]
    first = first if row["category"] == EVERYTHING else [""] * len(first)
    means = [f"{row['without']:.2f}", f"{row['with']:.2f}", f"{Interval(row['value'], row['low'], row['high']):+.2f}"]
    return [*first, row["category"], row["played"], *means, row["verdict"] if row["category"] == EVERYTHING else ""]
