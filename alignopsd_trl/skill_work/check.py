"""``alignopsd skills check``: measures a bank and leaves ``skills.json``, a table and a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

import pandas as pd

from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.measure.measurement import cpu_seconds
from alignopsd_trl.measure.ranking import EVERYTHING, Success
from alignopsd_trl.measure.report import markdown
from alignopsd_trl.measure.setup import Session, environment_preset, prepare
from alignopsd_trl.runs.files import plain as as_json
from alignopsd_trl.skill_work.worth import Bench, Worth, measure, unnamed, worths
from alignopsd_trl.skills import SkillBank

MOST_SHOWN = 60  # characters of a skill on the page


def check(given: argparse.Namespace, shown: str) -> dict[str, Any]:
    """Measures, prints the page, writes the files and returns the content of the JSON file."""
    with setup():
        from alignopsd_trl.skill_work.picture import finding

        session = open_session(given)
        bank = SkillBank.load(given.bank, encoder_of(given, session))
    with closing(session.player.environments):
        bench = open_bench(given, session)
        found = assess(given, session, bench, bank)
    content: dict[str, Any] = {
        "command": shown,
        "bank": str(given.bank),
        "checksum": bank.checksum,
        "tasks": len(bench.rows),
    }
    content |= {
        "plain_episodes": sum(map(len, bench.plain.values())),
        "value": given.value,
        "failed": len(bench.failed),
    }
    content |= {"tasks_that_retrieve_nothing": unnamed(bank, bench.asked), "cpu_seconds": cpu_seconds()}
    content |= {"never_retrieved": [one.id for one in found if not one.retrieved], "skills": figures(found)}
    print(page(content, found))
    finding(content, rows_of(found)).save(given.output)
    return as_json(content)


def open_session(given: argparse.Namespace) -> Session:
    """Loads the policy and the environment. The caller closes ``player.environments``."""
    own = {"methods": ["grpo"], "vary": [], "set": {}, "rollouts": 1, "tasks_per_batch": 1, "skill_bank": None}
    folder = given.output if given.action == "check" else given.output.parent
    return prepare(argparse.Namespace(**vars(given) | own | {"output": folder}))


def encoder_of(given: argparse.Namespace, session: Session) -> Any:
    name = given.encoder or environment_preset(given.environment).get("encoder", "lexical")
    return load_encoder(name, device=session.model.device)


def open_bench(given: argparse.Namespace, session: Session) -> Bench:
    """Draws tasks and plays them without a skill."""
    with setup():
        rows = {row["task_id"]: row for row in session.draw_tasks(min(given.tasks, len(session.tasks)))}
        return Bench(session.player, rows, given.slots, given.value, given.seed).open()


def assess(
    given: argparse.Namespace, session: Session, bench: Bench, bank: SkillBank, only: Collection[str] = ()
) -> list[Worth]:
    """Returns what a bank and its skills are worth, or some skills ``only``, harmful ones first."""

    def count(text: str) -> int:
        return len(session.tokenizer(text, add_special_tokens=False)["input_ids"])

    def told(line: str) -> None:
        if not given.quiet:
            print(f"alignopsd skills: {line}, {cpu_seconds():.0f} CPU seconds", file=sys.stderr, flush=True)

    listed = worths(bank, bench.asked, count, session.config.skill_budget)
    return measure(bench, [one for one in listed if not only or one.id in only], given.episodes, told)


def figures(found: Sequence[Worth]) -> list[dict[str, Any]]:
    """Returns what each skill is worth, for JSON."""
    return [
        {
            **{name: getattr(one, name) for name in ("id", "text", "tokens", "shown", "verdict", "success")},
            "retrieved": len(one.retrieved),
            "episodes": sum(map(len, one.outcomes.values())),
        }
        for one in found
    ]


def rows_of(found: Sequence[Worth]) -> pd.DataFrame:
    """Returns a row for each skill and category."""
    return pd.DataFrame([{**_row(one, name, own)} for one in found for name, own in one.success.items()])


def _row(one: Worth, category: str, own: Success) -> dict[str, Any]:
    ends = {"lift": own.lift.value, "low": own.lift.low, "high": own.lift.high}
    means = {"without": own.without.value, "with": own.skilled.value}
    return {"skill": one.id, "category": category, "tasks": own.tasks, **means, **ends, "verdict": one.verdict}


def page(content: Mapping[str, Any], found: Sequence[Worth]) -> str:
    """Returns the page of text (Markdown)."""
    lines = [f"# What each skill is worth: {content['bank']}", "", f"    {content['command']}", ""]
    plain = f"{content['tasks']} training tasks, {content['plain_episodes']} episodes without a skill"
    skilled = f"{sum(one.played for one in found)} with one skill, or with all that a task retrieves"
    lines += [f"{plain}, {skilled}. {content['failed']} failed. {content['cpu_seconds']:.0f} CPU seconds.", ""]
    head = ["skill", "", "tokens", "retrieved", "has room", "tasks", "without", "with", "lift", "verdict"]
    lines += [*markdown(head, [cells for one in found for cells in _cells(one)]), ""]
    lines += ["Intervals: 95 %, resampled tasks; the verdict allows for the number of skills and rounds.", ""]
    if content["never_retrieved"]:
        lines += [f"No task retrieves {', '.join(content['never_retrieved'])}.", ""]
    if nothing := content["tasks_that_retrieve_nothing"]:
        lines += [f"No type of the bank names {len(nothing)} tasks, such as {nothing[0]!r}.", ""]
    return "\n".join(lines)


def _cells(one: Worth) -> list[list[object]]:
    """Returns a row over all tasks, and one a category where there are several."""
    text = one.text if len(one.text) <= MOST_SHOWN else f"{one.text[: MOST_SHOWN - 3]}..."
    first = [one.id, text.replace("|", "\\|"), f"{one.tokens:.0f}", len(one.retrieved), one.shown]
    if not one.success:
        return [[*first, 0, "-", "-", "-", one.verdict]]
    return [
        [*(first if name == EVERYTHING else [f"· {name}", "", "", "", ""]), own.tasks, *_ends(own)]
        + [one.verdict if name == EVERYTHING else ""]
        for name, own in one.success.items()
    ]


def _ends(own: Success) -> list[str]:
    return [f"{own.without.value:.2f}", f"{own.skilled.value:.2f}", f"{own.lift:+.2f}"]
