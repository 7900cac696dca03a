"""What a run shows: one line an update, and on a terminal what the update is doing just now.

Everything else is in ``log.jsonl`` and with the trackers.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from alignopsd_trl.runs.progress import WIDE, clear_status, cut
from alignopsd_trl.statistics import wilson

BARS = "▁▂▃▄▅▆▇█"
_PHASES = {
    "rollout": ("rollout",),
    "teacher": ("privileged_thinking", "encoding"),
    "credit": ("credit", "scoring"),
    "update": ("update",),
}
"""Columns of the share of seconds, and the phases that each holds."""
_NOTED = (
    ("turns/truncated", "cut", 0.05),
    ("turns/invalid_actions", "invalid", 0.1),
    ("turns/repeated", "repeated", 0.1),
)
"""Shares of turns, and from where on they are unusual."""
LEAST_SAMPLE = 0.5  # effective sample size of a round's later steps, as a share of its tokens
LEGEND = f"{'':>9}  shares: % of the seconds in {', '.join(_PHASES)}"


class Lines(TrainerCallback):
    """One line an update, on the first process."""

    def __init__(self) -> None:
        self._curve: list[float] = []
        self._headed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        earlier = [one[measure_of(one)] for one in state.log_history if measure_of(one) in one]
        self._curve, self._headed = [100 * one for one in earlier], False

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or "train_runtime" in logs or not state.is_world_process_zero:
            return
        clear_status()
        if not self._headed:
            print(f"{header(columns(), measure_of(logs))}\n{LEGEND}", flush=True)
            self._headed = True
        if measure_of(logs) not in logs:
            self._other(logs, state)
            return
        self._curve.append(100 * logs[measure_of(logs)])
        episodes = args.generation_batch_size * max(int(args.logging_steps), 1) if args.logging_steps >= 1 else 0
        place = f"{state.global_step}/{state.max_steps}"
        print(line(place, logs, self._curve, episodes, columns()), flush=True)

    def _other(self, logs: Mapping[str, Any], state: Any) -> None:
        """An update without a round of its own, or an evaluation of the trainer's."""
        measure, place = measure_of(logs, "eval_episodes/"), f"{state.global_step}/{state.max_steps}".rjust(9)
        if measure in logs:
            print(f"{place}  evaluation: {measure.partition('/')[2]} {100 * logs[measure]:.1f} %", flush=True)
        elif away := drifted(logs):
            print(f"{place}  {away}", flush=True)


def measure_of(logs: Mapping[str, Any], prefix: str = "episodes/") -> str:
    """What a line shows first: success, or the score where an environment does not know who won."""
    return f"{prefix}success" if f"{prefix}success" in logs or f"{prefix}score" not in logs else f"{prefix}score"


def columns() -> int:
    """Of the terminal; 100 where there is none."""
    return shutil.get_terminal_size((WIDE, 24)).columns if sys.stdout.isatty() else WIDE


def header(width: int, measure: str = "episodes/success") -> str:
    trend = "trend          " if width >= WIDE else "trend "
    first = measure.partition("/")[2] + " %"
    return f"{'update':>9}  {first:<18} {trend} {'score':>5} {'turns':>5} {'sec':>6}  {'shares':<11} unusual"


def line(place: str, logs: Mapping[str, Any], curve: list[float], episodes: int, width: int) -> str:
    """One update.

    Args:
        place: update of updates.
        logs: its numbers.
        curve: success in percent of all updates so far, this one last; the score where success is unknown.
        episodes: that its success is a share of.
        width: columns at most.
    """
    trend = f"{curve[-1] - curve[0]:+6.1f}" + (f" {spark(curve):<8}" if width >= WIDE else "")
    first = f"{curve[-1]:5.1f}" if measure_of(logs).endswith("score") else share(curve[-1], episodes)
    text = (
        f"{place:>9}  {first:<18} {trend} {100 * (logs.get('episodes/score') or 0.0):5.1f} "
        f"{logs.get('episodes/turns', 0.0):5.1f} {_seconds(logs):6.1f}  {shares(logs):<11}"
    )
    notes = unusual(logs, episodes)
    return cut(f"{text} {notes}".rstrip(), width)


def share(percent: float, episodes: int) -> str:
    """With the Wilson interval, from five episodes on."""
    if episodes < 5:
        return f"{percent:5.1f}"
    won = round(percent / 100 * episodes)
    low, high = wilson(won, episodes)
    return f"{percent:5.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def spark(curve: list[float], places: int = 8) -> str:
    """The curve in eight characters, between 0 and 100: each the mean of its part."""
    count = min(places, len(curve))
    edges = [len(curve) * place // count for place in range(count + 1)]
    means = [sum(curve[a:b]) / (b - a) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return "".join(BARS[min(int(mean / 100 * len(BARS)), len(BARS) - 1)] for mean in means)


def shares(logs: Mapping[str, Any]) -> str:
    """Whole percents of the seconds by phase."""
    total = _seconds(logs) or 1.0
    parts = [sum(logs.get(f"seconds/{name}") or 0.0 for name in names) for names in _PHASES.values()]
    return "/".join(f"{100 * part / total:.0f}" for part in parts)


def _seconds(logs: Mapping[str, Any]) -> float:
    return sum(value for name, value in logs.items() if name.startswith("seconds/") and value)


def unusual(logs: Mapping[str, Any], episodes: int) -> str:
    """What should not go by unseen: failed episodes, prompts that did not fit, cut, invalid and repeated responses."""
    failed = round((logs.get("stop/environment_error") or 0.0) * episodes)
    long = round((logs.get("stop/prompt_too_long") or 0.0) * episodes)
    counts = [f"{failed} failed" if failed else "", f"{long} too long" if long else ""]
    cuts = [
        f"{100 * (logs.get(name) or 0.0):.0f}% {word}" if (logs.get(name) or 0.0) >= least else ""
        for name, word, least in _NOTED
    ]
    silent = sum(int(value) for name, value in logs.items() if name.endswith("/none") and value)
    return ", ".join(filter(None, [*counts, *cuts, f"{silent} without reward" if silent else "", drifted(logs)]))


def drifted(logs: Mapping[str, Any]) -> str:
    """Says that a step's policy has left the one that sampled its round; empty if none has."""
    sizes = {name.split("/")[1]: value for name, value in logs.items() if re.fullmatch(r"drift/step_\d+/ess", name)}
    if not sizes or min(sizes.values()) >= LEAST_SAMPLE:
        return ""
    step = min(sizes, key=lambda name: sizes[name])
    return f"far from its sampler at step {step[5:]} of the round: {100 * sizes[step]:.0f}% effective samples"


def show_note(text: str) -> None:
    """One line among those of the updates, whatever the text."""
    clear_status()
    print(cut(f"{'':>9}  {' '.join(text.split())}", max(columns(), WIDE)), flush=True)
