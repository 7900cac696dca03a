"""Summarises a played panel (evaluation set): success and score, per category, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from alignopsd_trl.common.statistics import bootstrap_mean, wilson
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.turns import Trajectory


@dataclass(frozen=True)
class Outcome:
    """The result of one episode in an evaluation."""

    task_id: str
    category: str
    won: bool | None
    score: float
    turns: int
    invalid_actions: int
    stop: str
    last_action: str = ""

    @classmethod
    def of(cls, trajectory: Trajectory) -> Outcome:
        return cls(
            task_id=trajectory.row["task_id"],
            category=trajectory.category or str(trajectory.row.get("category", "")),
            won=trajectory.won,
            score=float(trajectory.score),
            turns=len(trajectory.turns),
            invalid_actions=sum(not turn.action_valid for turn in trajectory.turns),
            stop=trajectory.stop.value if trajectory.stop else "",
            last_action=trajectory.turns[-1].action[:200] if trajectory.turns else "",
        )


@dataclass(frozen=True)
class Estimate:
    """A mean over ``episodes`` with its 95 % interval, in percent; ``low`` and ``high`` are NaN if they are too few."""

    mean: float
    low: float
    high: float
    episodes: int

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Estimate:
        """Reads an estimate from JSON, which has null for NaN."""
        known: dict[str, Any] = {name: math.nan if value is None else value for name, value in content.items()}
        return cls(**known)

    @property
    def interval(self) -> str:
        """The interval as text; empty where it is unknown."""
        return "" if math.isnan(self.low) else f" [{self.low:.1f}, {self.high:.1f}]"

    def __str__(self) -> str:
        return "unknown" if math.isnan(self.mean) else f"{self.mean:.1f}{self.interval}"


FEWEST = 5
"""Smallest number of episodes for an interval; with fewer, intervals are too wide to be of use."""


def success_rate(won: Sequence[bool | None]) -> Estimate:
    """Returns the share of won episodes with the Wilson interval (NaN for fewer than `FEWEST` episodes). All values are
    NaN without episodes, and if it is unknown for any of them whether it was won."""
    if not won or None in won:
        return Estimate(math.nan, math.nan, math.nan, len(won))
    wins, episodes = sum(map(bool, won)), len(won)
    return _estimate(100 * wins / episodes, episodes, lambda: wilson(wins / episodes, episodes))


def mean_score(scores: Sequence[float]) -> Estimate:
    """Returns the mean of the environment's scores with a bootstrap interval over episodes, which stays in the range of
    the scores (NaN for fewer than `FEWEST` episodes). The draws are always the same."""
    mean = 100 * math.fsum(scores) / len(scores) if scores else math.nan
    return _estimate(mean, len(scores), lambda: bootstrap_mean(scores))


def _estimate(mean: float, episodes: int, interval: Callable[[], tuple[float, float]]) -> Estimate:
    if episodes < FEWEST:
        return Estimate(mean, math.nan, math.nan, episodes)
    low, high = interval()
    return Estimate(mean, 100 * low, 100 * high, episodes)


@dataclass(frozen=True)
class EvaluationResult:
    """The result of playing a panel once.

    Args:
        environment, panel, checksum (`str`): the played tasks; equal checksums mean equal tasks in equal order.
        episodes (`int`): number of episodes, one per task.
        skills (`bool`): whether the policy read the skill in its own prompt.
        temperature, seed (`float`, `int`): the settings of sampling.
        success, score (`Estimate`): the success rate and mean score of all episodes.
        success_macro (`float`): mean success over categories, in percent.
        categories (`dict[str, dict[str, Estimate]]`): ``success`` and ``score`` of each category.
        turns, invalid_actions (`float`): turns per episode; the share of actions with a bad format, in [0, 1].
        environment_errors (`int`): number of episodes in which the environment failed.
        outcomes (`tuple[Outcome, ...]`): the episodes, in the panel's order.
        records (`tuple[dict[str, Any], ...]`): what was said in them, a record a turn; empty unless a trainer played.

    ``success`` is NaN if the environment does not know it (`Step.won` is `None`); then the score alone counts.
    ``success`` and ``score`` weigh every task alike; ``success_macro`` weighs every category alike. A category without
    tasks is absent. An episode in which the environment failed counts as not won.
    """

    environment: str
    panel: str
    checksum: str
    episodes: int
    skills: bool
    temperature: float
    seed: int
    success: Estimate
    score: Estimate
    success_macro: float
    categories: dict[str, dict[str, Estimate]]
    turns: float
    invalid_actions: float
    environment_errors: int
    outcomes: tuple[Outcome, ...]
    records: tuple[dict[str, Any], ...] = field(default=(), compare=False, repr=False)

    def to_dict(self, outcomes: bool = False) -> dict[str, Any]:
        content = asdict(replace(self, records=()))
        del content["records"]
        if not outcomes:
            del content["outcomes"]
        return content

    def table(self) -> str:
        """Returns plain text: one line per named category, then all tasks; without success if it is unknown for all."""
        rows = {name: row for name, row in self.categories.items() if name}
        rows |= {"all": {"success": self.success, "score": self.score}}
        known = ("score",) if all(math.isnan(row["success"].mean) for row in rows.values()) else ("success", "score")
        lines = [f"{'':<16}" + "".join(f"{f'{kind} %':>22}" for kind in known) + f"{'episodes':>10}"]
        for name, row in rows.items():
            shown = "".join(f" {str(row[kind]):>21}" for kind in known)
            lines.append(f"{name:<16}{shown}{row['success'].episodes:>10}")
        lines.append(
            f"panel {self.panel} of {self.environment}, checksum {self.checksum}, "
            f"skills {'in the prompt' if self.skills else 'no'}, temperature {self.temperature:g}, seed {self.seed}, "
            f"{self.turns:.1f} turns an episode, {100 * self.invalid_actions:.1f} % invalid actions, "
            + (f"macro success {self.success_macro:.1f} %" if "success" in known else "success unknown")
            + (f", {self.environment_errors} episodes failed and count as not won" if self.environment_errors else "")
        )
        return "\n".join(lines)


def summarise(
    panel: TaskPanel, outcomes: Sequence[Outcome], *, skills: bool, temperature: float, seed: int
) -> EvaluationResult:
    """Makes the result of a panel from all its outcomes, which may be in any order. Raises `ValueError` if a task of
    the panel is missing or was played twice."""
    by_id = {outcome.task_id: outcome for outcome in outcomes}
    if len(by_id) != len(outcomes) or set(by_id) != set(panel.task_ids):
        raise ValueError(
            f"panel {panel.name!r} has {len(panel)} tasks, {len(outcomes)} outcomes do not cover them once"
        )
    ordered = tuple(by_id[task_id] for task_id in panel.task_ids)
    groups = {name: [one for one in ordered if one.category == name] for name in sorted({o.category for o in ordered})}
    categories = {
        name: {"success": success_rate([o.won for o in group]), "score": mean_score([o.score for o in group])}
        for name, group in groups.items()
    }
    turns = sum(outcome.turns for outcome in ordered)
    return EvaluationResult(
        environment=panel.environment,
        panel=panel.name,
        checksum=panel.checksum,
        episodes=len(ordered),
        skills=skills,
        temperature=temperature,
        seed=seed,
        success=success_rate([outcome.won for outcome in ordered]),
        score=mean_score([outcome.score for outcome in ordered]),
        success_macro=sum(row["success"].mean for row in categories.values()) / len(categories),
        categories=categories,
        turns=turns / len(ordered),
        invalid_actions=sum(outcome.invalid_actions for outcome in ordered) / max(turns, 1),
        environment_errors=sum(outcome.stop == "environment error" for outcome in ordered),
        outcomes=ordered,
    )
