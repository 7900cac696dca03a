"""The output of a run: one line an update and, on a terminal, the phase that runs now.

Everything else is in ``log.jsonl`` and with the trackers.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from alignopsd_trl.common.progress import WIDE, clear_status
from alignopsd_trl.common.statistics import Interval, share_of_tasks, surely_apart
from alignopsd_trl.config import BEST
from alignopsd_trl.rollout.metrics import SQUARES

BARS = "▁▂▃▄▅▆▇█"
_MOST = 1e300  # of a value that is drawn, so that sums stay finite
_PHASES = {
    "rollout": ("rollout",),
    "teacher": ("privileged_thinking", "encoding"),
    "credit": ("credit", "scoring"),
    "update": ("update",),
}
"""Columns of the seconds' shares, and the phases in each."""
_NOTED = (
    ("turns/truncated", "cut", 0.05),
    ("turns/invalid_actions", "invalid", 0.1),
    ("turns/repeated", "repeated", 0.1),
)
"""Shares of turns, their names on the console, and the least values that are unusual."""
LEAST_SAMPLE = 0.5  # effective sample size of a round's later steps, as a share of its tokens
LEGEND = (
    f"{'':>9}  trend: less the first update's, whose tasks are others; ? where both intervals allow none\n"
    f"{'':>9}  shares: % of the seconds in {', '.join(_PHASES)}"
)


class Lines(TrainerCallback):
    """Prints one line a round on the first process, once the last update is made and its seconds are known."""

    def __init__(self) -> None:
        self._curve: list[Interval] = []
        self._headed = False
        self._round: dict[str, Any] = {}  # numbers of a round that has updates to make

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        earlier = [one for one in state.log_history if measure_of(one) in one]
        self._curve, self._headed = [outcome(one, *_counts(args)) for one in earlier], False

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or "train_runtime" in logs or not state.is_world_process_zero:
            return
        clear_status()
        if not self._headed and measure_of(logs) in logs:
            print(f"{header(columns(), measure_of(logs))}\n{LEGEND}", flush=True)
            self._headed = True
        self._round |= logs if measure_of(logs) in logs else {}
        if not self._round or _seconds(logs) == 0:
            self._other(logs, state)
            return
        found, self._round = self._round | logs, {}
        tasks, episodes = _counts(args)
        self._curve.append(outcome(found, tasks, episodes))
        place = f"{state.global_step}/{state.max_steps}"
        print(line(place, found, self._curve, episodes, columns()), flush=True)

    def _other(self, logs: Mapping[str, Any], state: Any) -> None:
        """Prints an update in the middle of its round, or an evaluation by the trainer."""
        place = f"{state.global_step}/{state.max_steps}".rjust(9)
        for name in [name for name in logs if name.endswith(BEST)]:
            measure = measure_of(logs, name.replace(BEST, "episodes/")).rpartition("/")[2]
            title = f"evaluation {name.removesuffix(BEST)[5:-1]}".rstrip()
            print(f"{place}  {title}: {measure} {percent(logs[name]).strip()} %", flush=True)
        if away := drifted(logs):
            print(f"{place}  {away}", flush=True)


def _counts(args: Any) -> tuple[float, int]:
    """Returns the tasks and the episodes of a line; zeros where lines do not come by the update."""
    rounds = max(args.logging_steps / args.steps_per_round, 1) if args.logging_steps >= 1 else 0
    episodes = args.generation_batch_size * rounds
    return float(episodes / args.num_generations), int(episodes)


def outcome(logs: Mapping[str, Any], tasks: float, episodes: int) -> Interval:
    """Returns the success of a line, with the interval of `share_of_tasks` from five episodes on; a score has none."""
    measure = measure_of(logs)
    if measure.endswith("score") or episodes < 5 or SQUARES not in logs:
        return Interval(logs[measure])
    return share_of_tasks(logs[measure], logs[SQUARES], tasks, episodes)


def measure_of(logs: Mapping[str, Any], prefix: str = "episodes/") -> str:
    """Returns the name of the measure that a line shows first: success, or the score where success is unknown."""
    return f"{prefix}success" if f"{prefix}success" in logs or f"{prefix}score" not in logs else f"{prefix}score"


def columns() -> int | None:
    """Returns the width of the terminal; `None` without one."""
    return shutil.get_terminal_size((WIDE, 24)).columns if sys.stdout.isatty() else None


def header(width: int | None, measure: str = "episodes/success") -> str:
    trend = "trend           " if width is None or width >= WIDE else "trend  "
    first = measure.partition("/")[2] + " %"
    return f"{'update':>9}  {first:<18} {trend} {'score':>5} {'turns':>5} {'sec':>6}  {'shares':<11} unusual"


def line(place: str, logs: Mapping[str, Any], curve: Sequence[Interval], episodes: int, width: int | None) -> str:
    """Returns the line of one round.

    Args:
        curve: success of all rounds so far, this one last; the score where success is unknown.
        width: columns before the warnings wrap to the next line; no limit if `None`.
    """
    change = percent(curve[-1].value - curve[0].value, "+6")
    doubt = " " if len(curve) < 2 or surely_apart(curve[0], curve[-1]) else "?"
    drawn = f" {spark([100 * one.value for one in curve]):<8}" if width is None or width >= WIDE else ""
    text = (
        f"{place:>9}  {share(curve[-1]):<18} {change}{doubt}{drawn} {percent(logs.get('episodes/score') or 0.0)} "
        f"{logs.get('episodes/turns', 0.0):5.1f} {_seconds(logs):6.1f}  {shares(logs):<11} "
    )
    return wrapped(text, unusual(logs, episodes), width).rstrip()


def share(found: Interval) -> str:
    """Formats a share in percent, with its interval where that is known."""
    ends = "" if math.isnan(found.low) else f" [{100 * found.low:.0f}, {100 * found.high:.0f}]"
    return f"{percent(found.value)}{ends}"


def percent(value: float, width: str = "5") -> str:
    """Formats a number in percent; a score may be any number."""
    return f"{100 * value:{width}.{'1f' if abs(value) < 1000 else '1e'}}"


def spark(curve: list[float]) -> str:
    """Draws a curve in eight characters: each is the mean of its part. The lowest bar is 0 and the highest 100, or the
    curve's own ends where these lie beyond."""
    count = min(8, len(curve))
    edges = [len(curve) * place // count for place in range(count + 1)]
    drawn = [max(min(value, _MOST), -_MOST) for value in curve]
    means = [sum(drawn[a:b]) / (b - a) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    low, high = min(0.0, *means), max(100.0, *means)
    return "".join(BARS[min(int((mean - low) / (high - low) * len(BARS)), len(BARS) - 1)] for mean in means)


def shares(logs: Mapping[str, Any]) -> str:
    """Returns the share of the seconds that each phase took, in whole percents."""
    total = _seconds(logs) or 1.0
    parts = [sum(logs.get(f"seconds/{name}") or 0.0 for name in names) for names in _PHASES.values()]
    return "/".join(f"{100 * part / total:.0f}" for part in parts)


def _seconds(logs: Mapping[str, Any]) -> float:
    return sum(value for name, value in logs.items() if name.startswith("seconds/") and value)


def unusual(logs: Mapping[str, Any], episodes: int) -> str:
    """Returns a round's warnings: failed episodes, prompts that did not fit, cut, invalid and repeated responses."""
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
    """Returns a warning if a step's policy has drifted from the one that sampled its round; else empty."""
    sizes = {name.split("/")[1]: value for name, value in logs.items() if re.fullmatch(r"drift/step_\d+/ess", name)}
    if not sizes or min(sizes.values()) >= LEAST_SAMPLE:
        return ""
    step = min(sizes, key=lambda name: sizes[name])
    return f"far from its sampler at step {step[5:]} of the round: {100 * sizes[step]:.0f}% effective samples"


def show_note(text: str, process: int = 0) -> None:
    """Prints a note of the first process between the lines of updates: wrapped on a terminal, whole in a file."""
    if process == 0:
        clear_status()
        print(wrapped(f"{'':>9}  ", " ".join(text.split()), columns()), flush=True)


def wrapped(before: str, text: str, width: int | None) -> str:
    if width is None or len(before + text) <= width:
        return before + text
    below = " " * (len(before) if len(before) <= width // 2 else 11)
    lines = textwrap.wrap(text, width, initial_indent=before, subsequent_indent=below, break_long_words=False)
    return "\n".join(lines)
