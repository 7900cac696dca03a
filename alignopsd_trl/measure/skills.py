"""``alignopsd measure --each_skill``: measures the skills of a bank and leaves ``skills.json`` and a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pandas as pd

from alignopsd_trl.common.files import write_json, write_text
from alignopsd_trl.common.statistics import Interval
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.measure.lift import EVERYTHING, Success
from alignopsd_trl.measure.measurement import cpu_seconds
from alignopsd_trl.measure.report import markdown
from alignopsd_trl.measure.setup import prepare
from alignopsd_trl.measure.skill_worth import Bench, Worth, measure, unnamed, worths
from alignopsd_trl.skills import SkillBank

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
        "tasks_that_retrieve_nothing": unnamed(bank, bench.asked),
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
    """Returns the page of text (Markdown)."""
    facts = (
        "{tasks} training tasks, {plain_episodes} episodes without a skill, {episodes} with one, or with all that a "
        "task retrieves; {failed} more failed. {cpu_seconds:.0f} CPU seconds."
    ).format(**content)
    lines = ["# What each skill is worth", "", f"    {content['command']}", "", facts, ""]
    lines += [*markdown(HEAD, map(_cells, content["skills"])), ""]
    lines += ["Intervals: 95 %, resampled tasks; the verdict allows for the number of skills and rounds.", ""]
    if content["never_retrieved"]:
        lines += [f"No task retrieves {', '.join(content['never_retrieved'])}.", ""]
    if nothing := content["tasks_that_retrieve_nothing"]:
        lines += [f"No type of the bank names {len(nothing)} tasks, such as {nothing[0]!r}.", ""]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[object]:
    first = [row["skill"], row["text"][:MOST_SHOWN], f"{row['tokens']:.0f}", row["retrieved"], row["room"]]
    first = first if row["category"] == EVERYTHING else [""] * len(first)
    means = [f"{row['without']:.2f}", f"{row['with']:.2f}", f"{Interval(row['value'], row['low'], row['high']):+.2f}"]
    return [*first, row["category"], row["played"], *means, row["verdict"] if row["category"] == EVERYTHING else ""]
