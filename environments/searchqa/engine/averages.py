"""Accuracy over several data sets, by the two means that the literature uses under one name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from alignopsd_trl.environments.searchqa.tasks import DATA_SOURCES


@dataclass(frozen=True)
class Averages:
    """Accuracies in [0, 1].

    Args:
        per_source: data source -> accuracy, in the order of tables.
        questions: data source -> number of questions behind it.
        macro_mean: unweighted mean over the data sets; what Search-R1 reports, and ``Avg`` in tables.
        question_weighted_mean: mean over all questions; the larger data sets dominate.
    """

    per_source: dict[str, float]
    questions: dict[str, int]
    macro_mean: float
    question_weighted_mean: float

    def __str__(self) -> str:
        lines = [f"{name:<24}{self.per_source[name]:8.1%}{count:8d}" for name, count in self.questions.items()]
        total = sum(self.questions.values())
        lines.append(f"{'mean over data sets':<24}{self.macro_mean:8.1%}{total:8d}")
        lines.append(f"{'mean over questions':<24}{self.question_weighted_mean:8.1%}{total:8d}")
        return "\n".join(lines)


def averages(results: Iterable[tuple[str, float]]) -> Averages:
    """Averages (data source, exact match) pairs, one per question.

    Raises:
        ValueError: without results, or on an unknown data source.
    """
    scores: dict[str, list[float]] = {name: [] for name in DATA_SOURCES}
    for source, score in results:
        if source not in scores:
            raise ValueError(f"data source {source!r} is unknown; known are {', '.join(DATA_SOURCES)}")
        scores[source].append(float(score))
    scores = {name: found for name, found in scores.items() if found}
    if not scores:
        raise ValueError("no results to average")
    per_source = {name: sum(found) / len(found) for name, found in scores.items()}
    questions = {name: len(found) for name, found in scores.items()}
    micro = sum(map(sum, scores.values())) / sum(questions.values())
    return Averages(per_source, questions, sum(per_source.values()) / len(per_source), micro)
