"""Sends a few trajectories of a round to trackers as a table: actions, outcome, and the credit of each turn.

Numbers go to every tracker through transformers' own callbacks. This adds the table to those that can show one: W&B,
trackio and TensorBoard (as text). The table holds only a few columns of the records of episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alignopsd_trl.common.files import plain
from alignopsd_trl.common.progress import cut, escaped
from alignopsd_trl.turns import Trajectory

NAME = "trajectories"
SIBLINGS, MOST_ROWS, MOST_CHARACTERS = 4, 100, 300
"""Limits of one round's table and of one text in it."""


def table_rows(
    trajectories: Sequence[Trajectory], credit: Mapping[str, Sequence[Any]], step: int
) -> list[dict[str, Any]]:
    """Returns a table of one row a turn, for some siblings of one task.

    The task is the first whose siblings did not all get the same reward. The rows are its best and worst siblings, so
    that the table shows what made the difference.

    Args:
        trajectories: trajectories of one process, in whole sibling groups.
        credit: columns with a value for each row of the turns' batch (`Turn.row`).
        step: training step of the rollout.
    """
    rows = []
    for one in _chosen(trajectories):
        for turn in one.turns:
            texts = {"thinking": turn.thought.thinking, "action": turn.action, "observation": turn.observation}
            rows.append(
                {"step": step, "task": one.task, "rollout": one.rollout, "reward": one.reward, "won": one.won}
                | {"turn": turn.number}
                | {name: plain(values[turn.row]) for name, values in credit.items() if turn.row is not None}
                | {name: cut(" ".join(text.split()), MOST_CHARACTERS) for name, text in texts.items()}
            )
    return rows[:MOST_ROWS]


def _chosen(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    groups: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        if one.turns and not one.failed:
            groups.setdefault(one.task, []).append(one)
    if not groups:
        return []
    differ = (group for group in groups.values() if len({one.reward for one in group}) > 1)
    group = sorted(next(differ, next(iter(groups.values()))), key=lambda one: -one.reward)
    half = SIBLINGS // 2
    return group if len(group) <= SIBLINGS else [*group[:half], *group[-half:]]


def send_table(rows: Sequence[Mapping[str, Any]], step: int, trackers: Sequence[str], callbacks: Iterable[Any]) -> None:
    """Sends a table to those trackers of a run that can show it.

    Args:
        rows: rows of `table_rows`; nothing is sent if there are none.
        step: training step that it belongs to.
        trackers: the run's ``report_to``.
        callbacks: the trainer's callbacks: TensorBoard's holds the writer.
    """
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    data = [[row.get(name) for name in columns] for row in rows]
    if "wandb" in trackers:
        import wandb

        if wandb.run is not None:
            wandb.log({NAME: wandb.Table(columns=columns, data=data), "train/global_step": step})
    if "trackio" in trackers:
        import trackio

        trackio.log({NAME: trackio.Table(columns=columns, data=data), "train/global_step": step})
    for one in callbacks:
        if (writer := getattr(one, "tb_writer", None)) is not None:
            writer.add_text(NAME, markdown(columns, data), step)


def markdown(columns: Sequence[str], data: Sequence[Sequence[Any]]) -> str:
    """Returns a table as TensorBoard shows it; the environment's texts are escaped."""
    lines = [columns, ["---"] * len(columns), *data]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    return escaped("" if value is None else f"{value:.4g}" if isinstance(value, float) else value)
