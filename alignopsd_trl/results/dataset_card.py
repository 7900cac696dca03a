"""Writes a run's trajectories as a data set for the Hub's viewer: one file of turns, one of episodes, and a card."""

from __future__ import annotations

from pathlib import Path

from alignopsd_trl.common.files import whole_json, write_text
from alignopsd_trl.records import read_records
from alignopsd_trl.results.card import TEMPLATES

EPISODE = ["step", "task", "task_id", "rollout", "category", "task_text", "reward", "won", "score", "stop", "message"]


def write_dataset(run: Path, target: Path) -> None:
    """Writes ``turns/train.parquet``, ``episodes/train.parquet`` and ``README.md``.

    Args:
        run: output folder of a finished run.
        target: an existing folder.
    """
    results, frame = whole_json(run / "results.json") or {}, read_records(run / "trajectories")
    turns = frame[frame.turn.notna()]
    counts = frame.groupby(["step", "task", "rollout"]).turn.transform("count").rename("turns")
    episodes = frame[EPISODE].join(counts).drop_duplicates(["step", "task", "rollout"])
    for name, table in (("turns", turns), ("episodes", episodes)):
        (target / name).mkdir()
        table.to_parquet(target / name / "train.parquet", index=False)
    credit = [name for name in turns if name.startswith("credit_")]
    card = TEMPLATES.get_template("dataset_card.md.jinja").render(
        results=results,
        columns=[name for name in turns if name not in credit],
        credit=credit,
        turns=len(turns),
        episodes=len(episodes),
    )
    write_text(target / "README.md", card)
