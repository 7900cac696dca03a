"""Figures that the pages print are those of the stored rows, of one protocol a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "research" / "results"
FRESH = range(10, 18)  # the seeds whose runs shared a machine and a commit


def printed(page: str, row: str) -> str:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    (found,) = [line for line in lines if line.startswith("| ") and row in line]
    return found


def half(values: Any) -> float:
    return stats.t.ppf(0.975, len(values) - 1) * pd.Series(values).std() / math.sqrt(len(values))


def told(values: Any) -> str:
    return f"{pd.Series(values).mean():+.1f} ± {half(values):.1f}"


def by_seed(rows: pd.DataFrame, label: str, column: str = "success") -> pd.Series:
    return rows[rows.label == label].set_index("seed")[column]


def protocol(rows: pd.DataFrame) -> set[Any]:
    """What makes rows comparable: episodes, steps and rate of training, panel and temperature of the evaluation."""
    names = ("learning_rate", "num_iterations", "steps_per_generation", "eval_temperature")
    configs = [json.loads(one) for one in rows.config]
    settings = [tuple(one[name] for name in names) for one in configs]
    return {(*one, *rest) for one, rest in zip(settings, rows[["trajectories", "panel_checksum"]].values, strict=True)}


WORLDS = {
    "Search-QA hops, 384 episodes": ("| hops | 16", "searchqa_hops"),
    "ALFWorld pairs, 384 episodes": ("| pairs | 16", "alfworld_pairs"),
}


@pytest.mark.parametrize("world", WORLDS)
def test_a_frozen_teachers_row_is_of_one_protocol_with_its_cost(world: str) -> None:
    start, folder = WORLDS[world]
    every = pd.read_parquet(RESULTS / "distribution" / "rows.parquet")
    rows = every[(every.environment == world) & every.label.isin(["GRPO", "AlignOPSD + distribution"])]
    untrained = pd.read_parquet(RESULTS / folder / "table1.parquet")
    assert len(protocol(rows)) == 1 and set(untrained.panel_checksum) == set(rows.panel_checksum)
    taught = by_seed(rows, "AlignOPSD + distribution")
    grpo = by_seed(rows, "GRPO")[taught.index]
    seconds = [by_seed(rows, name, "cpu_seconds")[list(FRESH)].mean() for name in ("GRPO", "AlignOPSD + distribution")]
    wanted = [f"{by_seed(untrained, 'Vanilla').mean():.1f}, {by_seed(untrained, 'Skill-Prompt*').mean():.1f}"]
    wanted += [
        f"| {grpo.mean():.1f}",
        f"{taught.mean():.1f}",
        f"{told(taught - grpo)}",
        "{:.0f}, {:.0f} |".format(*seconds),
    ]
    row = printed("docs/credit.md", start)
    assert len(taught) == 16 and all(one in row for one in wanted), (row, wanted)
    code = {name: set(by_seed(rows, name, "code")[list(FRESH)]) for name in set(rows.label)}
    assert len(set.union(*code.values())) == 1, "CPU seconds of different code are not compared"


def pooled(folder: str, rows: str, further: str, sizes: tuple[int, int]) -> pd.Series:
    """Differences to GRPO by seed, over the study's panel and the further tasks."""
    first, content = pd.read_parquet(RESULTS / folder / rows), json.loads((RESULTS / folder / further).read_text())
    parts = {}
    for label in ("AlignOPSD", "GRPO"):
        more = pd.Series({int(seed): one["success"] for seed, one in content[label].items()})
        parts[label] = (sizes[0] * by_seed(first, label) + sizes[1] * more) / sum(sizes)
    return (parts["AlignOPSD"] - parts["GRPO"]).dropna()


def hops() -> pd.Series:
    names = ("hops", "hops_seeds_8_to_15_decay", "hops_seeds_16_to_63")
    rows = pd.concat([pd.read_parquet(RESULTS / "searchqa_hops" / f"{name}.parquet") for name in names])
    assert len(protocol(rows)) == 1
    return by_seed(rows, "AlignOPSD") - by_seed(rows, "GRPO")


def one_request() -> pd.Series:
    content = json.loads((RESULTS / "tiny_recipes" / "webshop_goals_500.json").read_text())
    return pd.Series({s: one["success"] - content["grpo"][s]["success"] for s, one in content["align_opsd"].items()})


PUBLISHED = {
    "12 rounds of 32, 2e-4": (hops, 64),
    "12 of 32, 2e-4": (lambda: pooled("alfworld_pairs", "pairs.parquet", "pairs_400.json", (160, 400)), 8),
    "12 of 32, 3e-4": (lambda: pooled("webshop_trips", "trips_3e-4.parquet", "trips_3e-4_500.json", (192, 500)), 8),
    "12 of 32, 1.5e-4": (lambda: pooled("webshop_trips", "trips.parquet", "trips_384.json", (192, 384)), 8),
    "12 of 64, 1.5e-4": (one_request, 8),
}


@pytest.mark.parametrize("row", PUBLISHED)
def test_a_row_of_the_published_method_is_that_of_its_seeds(row: str) -> None:
    differences, seeds = PUBLISHED[row][0](), PUBLISHED[row][1]
    assert len(differences) == seeds
    assert f"| {told(differences)} |" in printed("docs/credit.md", row)


COSTS = {
    "12 of 32, 2e-4": "alfworld_pairs/pairs.parquet",
    "12 of 32, 3e-4": "webshop_trips/trips_3e-4.parquet",
    "12 of 32, 1.5e-4": "webshop_trips/trips.parquet",
}


@pytest.mark.parametrize("row", COSTS)
def test_the_cost_beside_a_row_is_that_of_its_runs(row: str) -> None:
    rows = pd.read_parquet(RESULTS / COSTS[row])
    seconds = [by_seed(rows, label, "cpu_seconds").mean() for label in ("GRPO", "AlignOPSD")]
    assert printed("docs/credit.md", row).endswith("| {:.0f}, {:.0f} |".format(*seconds))


def test_p_values_are_corrected_for_all_rows() -> None:
    found = sorted(stats.ttest_1samp(find(), 0).pvalue for find, _ in PUBLISHED.values())
    holm = [max((len(found) - n) * found[n] for n in range(upto + 1)) for upto in range(2)]
    text = " ".join((ROOT / "docs" / "credit.md").read_text(encoding="utf-8").split())
    assert all(f"(p = {one:.3f})".replace("0.", ".") in text for one in found[:2])
    assert f"by Holm, they have {holm[1]:.2f} and {holm[0]:.2f}".replace("0.", ".") in text


def test_the_table_of_what_teaches_is_the_stored_rows() -> None:
    rows = pd.read_parquet(RESULTS / "what_teaches" / "rows.parquet")
    twelve, more = (
        rows[rows.environment == f"hops, {count} rounds"].pivot_table(index="seed", columns="label", values="success")
        for count in (12, 24)
    )
    rates = {"GRPO": 1, "distribution alone": 4, "distribution + GRPO": 2, "distribution + AlignOPSD": 2}
    lines = list(rates)
    for label, rate in rates.items():
        row = printed("research/what_teaches.md", f"| {label} | {rate}e-4 |")
        for part in (twelve[[*lines, "Skill-Prompt*"]].dropna(), more[lines].dropna()):
            assert f"{part[label].mean():.1f} ± {half(part[label]):.1f}" in row
            assert label == "GRPO" or told(part[label] - part["GRPO"]) in row


def test_the_table_above_the_teacher_is_the_stored_rows() -> None:
    earlier = pd.read_parquet(RESULTS / "what_teaches" / "rows.parquet")
    earlier = earlier[earlier.environment == "hops, 24 rounds"].pivot_table(
        index="seed", columns="label", values="success"
    )
    ends = pd.read_parquet(RESULTS / "what_teaches" / "above.parquet").pivot_table(
        index="seed", columns="label", values="success"
    )
    ends["GRPO"] = earlier["GRPO"].combine_first(ends["GRPO"])
    for label in ends.columns[ends.count() > 1]:
        row, end = printed("research/what_teaches.md", f"| {label} | {ends[label].count()} |"), ends[label].dropna()
        assert f"{end.mean():.1f} ± {half(end):.1f}" in row
        assert label == "GRPO" or told((end - ends["GRPO"]).dropna()) in row
        assert told((end - earlier["Skill-Prompt*"]).dropna()) in row


def test_imitation_beside_the_other_lines_is_the_stored_rows() -> None:
    rows = pd.DataFrame(json.loads((RESULTS / "what_teaches" / "imitation.json").read_text()))
    ends = rows[(rows.environment == "searchqa_hops") & rows.seed.between(20, 25)]
    ends = ends.pivot_table(index="seed", columns="line", values="success")
    others = pd.read_parquet(RESULTS / "what_teaches" / "rows.parquet")
    others = others[others.environment == "hops, 12 rounds"].pivot_table(
        index="seed", columns="label", values="success"
    )
    for line, start in (("won", "| imitation of won episodes |"), ("won, then GRPO", "| then 12 rounds of GRPO")):
        row = printed("research/what_teaches.md", start)
        assert f"{ends[line].mean():.1f} ± {half(ends[line]):.1f}" in row
        assert all(told((ends[line] - others[other]).dropna()) in row for other in ("GRPO", "Skill-Prompt*"))
    shown = printed("README.md", "| imitation of what it wins")
    assert f"{ends['won'].mean():.1f} ± {half(ends['won']):.1f}" in shown
    assert told((ends["won"] - others["GRPO"]).dropna()) in shown
