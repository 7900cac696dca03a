"""The screen before the first update, and the one after the last."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.progress import WIDE, cut
from alignopsd_trl.results.summary import Estimate, mean_score
from alignopsd_trl.runs.checkpoints import MARK
from alignopsd_trl.runs.folder import RunFolder
from alignopsd_trl.runs.state import RUN_FILE
from alignopsd_trl.training.console import columns

_LABEL, _TURNS = 14, "trajectories/"
_LEFT = {
    **{"results.json": "results.json", "checkpoints": f"checkpoint-*/{MARK}", "log.jsonl": "log.jsonl"},
    **{_TURNS: "trajectories/*.parquet", "the model": "*.safetensors"},
}
"""What a run leaves -> the files that show that it is there."""


def opening(facts: Mapping[str, Any], changed: Mapping[str, Any], folder: RunFolder) -> str:
    """Returns the screen that introduces a run.

    Args:
        facts: name -> text about it.
        changed: settings that differ from the preset.
        folder: folder of the run.
    """
    width = min(columns() or WIDE, 120)
    rows = [_row(name, value, width) for name, value in facts.items()]
    if changed:
        rows += _wrapped("not as preset", [f"{name}={value}" for name, value in changed.items()], width)
    start = f"goes on from {folder.resume}" if folder.resume else "starts at update 0"
    again = f", session {folder.sessions}" if folder.sessions > 1 else ""
    return "\n".join(["", *rows, _row("run", f"{folder.id} in {folder.path}, {start}{again}", width), ""])


def closing(before: Mapping[str, Any] | None, after: Mapping[str, Any], folder: RunFolder) -> str:
    """Returns the screen at the end: before and after by category, the difference paired by task, and the paths."""
    width = min(columns() or WIDE, WIDE)
    names = [*after["categories"], "all"] if len(after["categories"]) > 1 else ["all"]
    first = 14 if width < WIDE else 30

    def row(name: str, tasks: Any, old: str, new: str, difference: str) -> str:
        return cut(f"{name[: first - 1]:<{first}}{tasks:>5}  {old:<19}{new:<19}{difference}".rstrip(), width)

    def shown(result: Mapping[str, Any] | None, kind: str = "success") -> str:
        return str(Estimate.of(result[kind])) if result else "-"

    lines = [row("success %", "tasks", "before", "after", "difference by task")]
    for name in names:
        new = after["categories"][name] if name != "all" else after
        old = None if before is None else before if name == "all" else before["categories"].get(name)
        difference = _difference(before, after, name, "won")
        lines.append(row(name, new["success"]["episodes"], shown(old), shown(new), difference))
    difference = _difference(before, after, "all", "score")
    lines.append(row("score %", after["episodes"], shown(before, "score"), shown(after, "score"), difference))
    if after["environment_errors"]:
        lines.append(f"{after['environment_errors']} episodes failed in their environment and count as not won")
    lines += [cut(line, width) for line in _lost(after["outcomes"])]
    lines.append(f"panel {after['panel']}, checksum {after['checksum']}, temperature {after['temperature']:g}")
    there = [name for name, pattern in _LEFT.items() if any(folder.path.glob(pattern))]
    lines.append(f"\n{', '.join(there) or 'no files'} are in {folder.path}")
    if not (folder.path / RUN_FILE).is_file():
        lines.append(f"{RUN_FILE} is gone: something removed files of this folder under way, and only these are left")
    if _TURNS in there:
        lines.append(f"where the credit went: alignopsd view {shlex.quote(path_as_given(folder.path))}")
    return "\n".join(["", *lines])


def _lost(outcomes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns how many episodes each category lost, the most first, with their most frequent last actions."""
    lost = [one for one in outcomes if one["won"] is False and one.get("last_action")]
    lines = ["lost episodes, by their last action:"] if lost else []
    for name, number in Counter(one["category"] or "all" for one in lost).most_common(12):
        part = (one for one in lost if (one["category"] or "all") == name)
        ends = Counter(cut(" ".join(one["last_action"].split()), 32) for one in part).most_common(3)
        lines.append(f"{name}: {number}, of them {', '.join(f'{count} {action!r}' for action, count in ends)}")
    return lines


def _difference(before: Mapping[str, Any] | None, after: Mapping[str, Any], category: str, what: str) -> str:
    """Returns the mean difference over the tasks of a category that both played, in percentage points."""
    if before is None:
        return "-"
    old = {one["task_id"]: one for one in before["outcomes"]}
    pairs = [
        (float(old[one["task_id"]][what]), float(one[what]))
        for one in after["outcomes"]
        if one["task_id"] in old
        and category in ("all", one["category"])
        and None not in (one[what], old[one["task_id"]][what])
    ]
    if not pairs:
        return "-"
    found = mean_score([new - earlier for earlier, new in pairs])
    interval = f" [{found.low:+.1f}, {found.high:+.1f}]" if found.low == found.low else ""
    return f"{found.mean:+.1f}{interval}"


def _row(name: str, value: Any, width: int) -> str:
    return cut(f"{name:<{_LABEL}}{value}", width)


def _wrapped(name: str, words: Sequence[str], width: int) -> list[str]:
    text = f"{name:<{_LABEL}}{'  '.join(words)}"
    lines = textwrap.wrap(text, width, subsequent_indent=" " * _LABEL, break_long_words=False)
    return [cut(one, width) for one in lines]
