"""Makes the tables of a study as markdown, from its rows alone.

A category without episodes stays empty. Best and second best are chosen among the printed figures, so that equal ones
share a mark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from alignopsd_trl.common.progress import markdown
from alignopsd_trl.common.statistics import Mean, mean, paired
from alignopsd_trl.environments.shipped import plays_embedded


@dataclass(frozen=True)
class Column:
    """A column of figures: ``name`` is a category, or a column of the rows if ``category`` is false."""

    environment: str
    name: str
    title: str
    category: bool


@dataclass(frozen=True)
class Entry:
    """A line of a table: its label and its finished rows, per environment and seed."""

    label: str
    method: str
    settings: str
    rows: dict[str, dict[int, dict[str, Any]]]
    value: Any = None


def entries(rows: pd.DataFrame, table: str) -> list[Entry]:
    """Returns the lines of a table in the study's order; ``table`` is ``methods``, ``ablations`` or ``sweep NAME``."""
    found: dict[int, Entry] = {}
    for row in rows.to_dict("records"):
        for place in json.loads(row["places"]):
            if place["table"] == table:
                made = Entry(place["label"], row["method"], row["settings"], {}, place["value"])
                entry = found.setdefault(place["position"], made)
                if row["status"] == "finished":
                    entry.rows.setdefault(row["environment"], {})[row["seed"]] = row
    return [found[position] for position in sorted(found)]


def columns(rows: pd.DataFrame, averages_only: bool = False) -> list[Column]:
    """Returns categories, then averages, of each environment; "embedded" ones where it plays this project's data."""
    found = []
    groups: Any = rows.groupby("environment", sort=False)
    for environment, group in groups:
        wanted = json.loads(group["columns"].iloc[0])
        finished = group[group["status"] == "finished"]
        played = [(row.get("suite", ""), row.get("suite_facts", "{}")) for row in finished.to_dict("records")]
        mark = "embedded " if any(plays_embedded(suite, json.loads(facts)) for suite, facts in played) else ""
        if not averages_only:
            known = {name for names in finished.get("category_names", []) for name in names}
            known |= {name for names in finished.get("suite_categories", []) for name in names}
            order = [*wanted["categories"], *sorted(known - set(wanted["categories"]))]
            found += [Column(environment, name, f"{mark}{name}", True) for name in order]
        found += [Column(environment, name, f"{mark}{title}", False) for name, title in wanted["averages"].items()]
    return found


def per_seed(entry: Entry, column: Column) -> dict[int, float]:
    """Returns a column's figure by seed; a category without episodes has none."""
    found = {}
    for seed, row in entry.rows.get(column.environment, {}).items():
        figures = dict(zip(row["category_names"], row["category_success"], strict=True)) if column.category else row
        if (figure := figures.get(column.name)) is not None:
            found[seed] = figure
    return found


def results_table(rows: pd.DataFrame, table: str, averages_only: bool = False) -> str:
    """Returns a table of lines x categories and averages: mean over seeds ± half a 95 % interval; best bold, second
    underlined."""
    lines, heads = entries(rows, table), columns(rows, averages_only)
    cells = [[list(per_seed(line, head).values()) for head in heads] for line in lines]
    means = [[mean(values) if values else None for values in row] for row in cells]
    marked = [_mark([row[place] for row in means]) for place in range(len(heads))]
    counts = [sorted({len(seeds) for seeds in line.rows.values()}) or [0] for line in lines]
    seeds = [" to ".join(map(str, found)) for found in counts]
    body = [[line.label, *(column[row] for column in marked), seeds[row]] for row, line in enumerate(lines)]
    corner, titles = _titles(heads)
    return "\n".join(markdown([corner, *titles, "seeds"], body, figures=True))


def differences_table(rows: pd.DataFrame, table: str, reference: Entry) -> str:
    """Returns a table of lines x averages: the difference to the reference with the same seed, as mean over seeds ±
    half a 95 % interval."""
    heads = columns(rows, averages_only=True)
    base = [per_seed(reference, head) for head in heads]
    body = []
    for line in entries(rows, table):
        if (line.method, line.settings, _starred(line)) != (reference.method, reference.settings, False):
            found = [paired(per_seed(line, head), other) for head, other in zip(heads, base, strict=True)]
            body.append([line.label, *("" if one is None else f"{one:+.1f}" for one in found)])
    return "\n".join(markdown([f"minus {reference.label}", *_titles(heads)[1]], body, figures=True))


def reference_entry(rows: pd.DataFrame, method: str) -> Entry | None:
    """Returns the line of a method without own settings, from any table."""
    tables = {place["table"] for places in rows["places"] for place in json.loads(places)}
    lines = (line for table in sorted(tables) for line in entries(rows, table))
    return next((x for x in lines if x.method == method and x.settings == "{}" and not _starred(x)), None)


def _starred(entry: Entry) -> bool:
    return any(row["with_skills"] for seeds in entry.rows.values() for row in seeds.values())


def _mark(column: Sequence[Mean | None]) -> list[str]:
    printed = sorted({round(one.value, 1) for one in column if one is not None}, reverse=True)
    marks = dict(zip(printed, ("**{}**", "<u>{}</u>"), strict=False))
    return ["" if one is None else marks.get(round(one.value, 1), "{}").format(one) for one in column]


def _titles(heads: Sequence[Column]) -> tuple[str, list[str]]:
    """Returns a table's corner and its columns' titles; the environment stands in the corner, several in the titles."""
    names = list(dict.fromkeys(head.environment for head in heads))
    if len(names) == 1:
        return names[0], [head.title for head in heads]
    return "", [f"{head.environment} {head.title}" for head in heads]
