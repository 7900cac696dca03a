"""Thinking where it is needed: the same spans, weights and advantages as thinking at all turns, from fewer thoughts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fakes.lockstep_cases import on_processes
from fakes.tables import batch_of, config

from alignopsd_trl.methods import checked_credit, get_method
from alignopsd_trl.methods.align_opsd.spans import boundary_quantile, clip_threshold, threshold_bounds
from alignopsd_trl.methods.grpo import not_scored
from alignopsd_trl.records import record_schema, trace_types
from alignopsd_trl.turns import Thought, TurnBatch

# The rule, on numbers


def some_shifts(draw: random.Random, count: int) -> list[float]:
    """Divergences with ties, at the clips and at both ends."""
    pool = [0.0, 0.01, 0.05, 0.1, 0.1, 0.5, 1.0, draw.random(), draw.random() / 10]
    return [draw.choice(pool) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_the_threshold_whatever_comes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        known, missing = some_shifts(draw, draw.randrange(0, 14)), draw.randrange(0, 9)
        quantile = draw.choice([0.0, 0.2, 0.5, 0.75, 0.8, 0.9, 1.0, draw.random()])
        low, high = draw.choice([(0.01, 0.1), (0.0, 1.0), (0.05, 0.05), (0.1, 0.5)])
        bounds = threshold_bounds(torch.tensor(known, dtype=torch.float64), missing, quantile, low, high)
        assert low <= bounds[0] <= bounds[1] <= high
        come = [some_shifts(draw, draw.randrange(0, missing + 1)) for _ in range(6)]
        for rest in [*come, [], [0.0] * missing, [1.0] * missing]:
            every = torch.tensor(known + rest, dtype=torch.float64)
            threshold = clip_threshold(boundary_quantile(every, quantile), low, high)
            if threshold is None:  # nothing counts, so nothing can be cut
                continue
            assert bounds[0] <= threshold <= bounds[1]


def test_the_upper_clip_is_known_exactly_when_the_inequality_says_so() -> None:
    """b + m <= q (n + m - 1): with one missing more, zeros would pull the quantile below the clip."""
    known, quantile = torch.tensor([0.0] * 2 + [0.9] * 10, dtype=torch.float64), 0.8
    reach = [m for m in range(60) if 2 + m <= quantile * (len(known) + m - 1)]
    assert max(reach) == 34
    for missing in range(60):
        least, most = threshold_bounds(known, missing, quantile, 0.01, 0.1)
        assert most == 0.1 and (least == 0.1) == (missing in reach)
    zeros = torch.cat([known, torch.zeros(41, dtype=torch.float64)])
    assert clip_threshold(boundary_quantile(zeros, quantile), 0.01, 0.1) < 0.1


def test_the_lower_clip_is_known_too() -> None:
    known = torch.full((20,), 0.001, dtype=torch.float64)
    assert threshold_bounds(known, 4, 0.8, 0.01, 0.1) == (0.01, 0.01)
    assert threshold_bounds(known, 6, 0.8, 0.01, 0.1) == (0.01, 0.1)


# Whole batches


class RandomTeacher:
    """Thinks at each turn what a seed says, whoever else it is asked about, and counts."""

    def __init__(self, batch: TurnBatch, seed: int, spread: float, gather=lambda values: values):
        generator = torch.Generator().manual_seed(seed)
        places = 3 + int(batch.turn.max())
        self._anchors = torch.randn(places, 8, generator=generator)
        self._noise = torch.randn(len(batch), 2, 8, generator=generator) * spread
        self._views = -torch.rand(len(batch), len(batch), batch.policy_mask.shape[1], generator=generator)
        self._turn, self.gather = batch.turn, gather
        self.asked: list[list[int]] = []
        self.calls: list[str] = []

    def thoughts(self, batch: TurnBatch, rows: torch.Tensor | None = None, actions: bool = True) -> list[Thought]:
        self.calls.append("thoughts" if actions else "thoughts alone")
        self.asked.append(list(range(len(batch))) if rows is None else rows.tolist())
        return [Thought(f"t {row}", "go" if actions else "") for row in self.asked[-1]]

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        vectors = []
        for text in texts:
            side, _, row = text.partition(" ")
            place = torch.ones(8) if side == "go" else self._anchors[self._turn[int(row)]]
            vectors.append(place if side == "go" else place + self._noise[int(row), int(side == "s")])
        return torch.nn.functional.normalize(torch.stack(vectors), dim=1) if vectors else torch.zeros(0, 8)

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls.append("score")
        views = self._views[source, target]
        return views if batch.scored is None else views * batch.scored[target, None]

    def vocabulary(self, batch: TurnBatch, count: int, sources=None, mix=None) -> tuple[torch.Tensor, torch.Tensor]:
        """All that a mixture depends on, as one number a turn."""
        self.calls.append("vocabulary")
        shape = (*batch.policy_mask.shape, count)
        mixed = torch.zeros(len(batch)) if mix is None else (mix.sources * mix.weights).sum(1) + mix.alpha
        return torch.zeros(shape, dtype=torch.int64), mixed.float()[:, None, None].expand(shape)


def some_batch(
    seed: int, tasks: int = 6, dead: Sequence[int] = (), first: int = 0, silent: Sequence[int] = ()
) -> TurnBatch:
    draw = random.Random(seed)
    names, rewards = [], []
    for task in range(tasks):
        turns = [draw.randrange(1, 8) for _ in range(3)]
        won = [0.0] * 3 if task in dead else draw.choice([[1.0, 0.0, 0.0], [1.0, 0.0, 0.5], [0.0, 1.0, 1.0]])
        for rollout, count in enumerate(turns):
            names += [[f"t{first + task:02}", f"r{rollout}", number] for number in range(count)]
            rewards += [won[rollout]] * count
    mask = torch.ones(len(names), 2, dtype=torch.bool)
    spoken = [int(task[1:]) - first not in silent for task, _, _ in names]
    thoughts = [Thought(f"s {row}" if one else "", "go") for row, one in enumerate(spoken)]
    generator = torch.Generator().manual_seed(seed)
    return batch_of(names, thoughts, mask, torch.tensor(rewards), -torch.rand(len(names), 2, generator=generator))


def both_ways(batch: TurnBatch, settings, seed: int, spread: float):
    """(credit, teacher) of thinking at all turns, and of thinking where it is needed."""
    method, found = get_method("align_opsd")(settings), []
    for scored in (None, ~not_scored(method, batch)):
        teacher = RandomTeacher(batch, seed, spread)
        found.append((checked_credit(method, replace(batch, scored=scored), teacher, 0), teacher))
    return found


def turns_of(batch: TurnBatch, tasks: Sequence[int]) -> list[int]:
    return [row for row, task in enumerate(batch.task.tolist()) if task in tasks]


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"boundary_min": 0.0, "boundary_max": 1.0},
        {"boundary_quantile": 0.3, "profile_temperature": 1.0},
        {"profile_distance": "entropy"},
        {"profile_distance": "cosine", "rectify": False},
        {"credit_spread": 0.3},
        {"allocation": "random"},
        {"allocation": "turn"},
        {"allocation": "token"},
    ],
)
def test_credit_is_that_of_thinking_at_all_turns(changes: dict, spread: float) -> None:
    settings = config(similarity_threshold=0.3, max_span=3, **changes)
    for seed in range(3):
        batch = some_batch(seed, dead=range(1 + seed % 3, 6))
        (whole, _), (short, teacher) = both_ways(batch, settings, seed, spread)
        asked = [row for call in teacher.asked for row in call]
        assert len(asked) == len(set(asked)) and set(turns_of(batch, range(1 + seed % 3))) <= set(asked)
        assert torch.equal(whole.advantages, short.advantages)
        assert whole.trace["weight"] == short.trace["weight"]
        scored = (~not_scored(get_method("align_opsd")(settings), batch)).nonzero().flatten().tolist()
        rows = {"divergence": turns_of(batch, range(1 + seed % 3)), "span": scored}
        rows |= dict.fromkeys(("sources", "rho", "alpha", "teacher_thinking"), rows["divergence"])
        for name, live in (rows | {"span_budget": rows["span"]}).items():
            if name in whole.trace:
                one, two = whole.trace[name], short.trace[name]
                assert [one[row] for row in live] == [two[row] for row in live]
        for name in ("spans/threshold", "spans/threshold_unclipped"):
            assert short.metrics.get(name) in (None, whole.metrics.get(name))
        assert short.metrics["teacher/thought_share"] == len(asked) / len(batch)


@pytest.mark.parametrize(
    ("changes", "tasks"),
    [
        *(({"allocation": one}, [0, 2, 5]) for one in ("turn", "token", "random")),
        ({"auxiliary_loss": "alignment"}, range(6)),
    ],
)
def test_without_a_threshold_only_groups_with_an_advantage_are_asked_about_unless_a_loss_reads_gaps(
    changes: dict, tasks: Sequence[int]
) -> None:
    batch = some_batch(1, dead=[1, 3, 4])
    _, (_, teacher) = both_ways(batch, config(**changes), 1, 1.0)
    assert teacher.asked == [turns_of(batch, tasks)]


def test_a_threshold_that_could_be_anywhere_takes_all_thoughts() -> None:
    batch, settings = some_batch(3, dead=[1, 3, 4]), config(boundary_min=0.0, boundary_max=1.0, profile_temperature=1.0)
    (whole, _), (short, teacher) = both_ways(batch, settings, 3, 0.3)
    assert teacher.asked[0] == turns_of(batch, [0, 2, 5]) and len(teacher.asked) > 1
    assert sorted(row for call in teacher.asked for row in call) == list(range(len(batch)))
    assert short.metrics["spans/threshold"] == whole.metrics["spans/threshold"]


@pytest.mark.parametrize("silent", [(), range(3, 14)])
def test_all_other_groups_are_thought_about_at_once_where_a_cut_depends_on_them(silent: Sequence[int]) -> None:
    """Shifts of the first groups lie between the clips, and the others could move the threshold past them; but where
    the policy did not think there is no profile, whatever the teacher would think, and nobody waits for a shift."""
    batch = some_batch(3, tasks=14, dead=range(3, 14), silent=silent)
    (whole, _), (short, teacher) = both_ways(batch, config(profile_temperature=0.6, similarity_threshold=0.1), 3, 1.0)
    assert teacher.asked == [turns_of(batch, range(3)), *([] if silent else [turns_of(batch, range(3, 14))])]
    assert torch.equal(whole.advantages, short.advantages)
    if not silent:
        assert whole.metrics["spans/threshold"] == short.metrics["spans/threshold"] == 0.1
        assert whole.metrics["spans/threshold_unclipped"] == short.metrics["spans/threshold_unclipped"]


def test_turns_are_scored_before_further_groups_are_asked_about() -> None:
    """So that what was made of their prompts is still there; of further groups nothing but shifts is read."""
    batch = some_batch(3, tasks=14, dead=range(3, 14))
    _, (short, teacher) = both_ways(batch, config(profile_temperature=0.6, similarity_threshold=0.1), 3, 1.0)
    assert teacher.calls == ["thoughts", "score", "thoughts alone"]
    further, trace = teacher.asked[1], short.trace
    assert all(trace["teacher_thinking"][row] and trace["divergence"][row] is not None for row in further)
    assert all(trace["sources"][row] == [] and trace["rho"][row] is None for row in further)
    acted = [row for row, action in enumerate(trace["teacher_action"]) if action is not None]
    assert acted == sorted(teacher.asked[0]) and {trace["teacher_action"][row] for row in acted} == {"go"}
    matched = [bool(trace["sources"][row]) for row in teacher.asked[0]]
    assert short.metrics["correspondence/matched_share"] == sum(matched) / len(matched) > 0


@pytest.mark.parametrize("weighting", ["flat", "span", "evidence"])
def test_a_distribution_mixes_views_of_all_turns_and_is_that_of_all_scores(weighting: str) -> None:
    batch, dead = some_batch(2, dead=[1, 3]), [1, 3]
    changes = {"auxiliary_loss": "distribution", "distribution_weighting": weighting, "similarity_threshold": 0.3}
    (whole, _), (short, teacher) = both_ways(batch, config(**changes), 2, 0.3)
    assert teacher.asked == [list(range(len(batch)))] and teacher.calls[-1] == "vocabulary"
    assert torch.equal(whole.advantages, short.advantages)
    assert whole.targets.keys() == short.targets.keys()
    assert all(torch.equal(values, short.targets[name]) for name, values in whole.targets.items())
    assert any(short.trace["alpha"][row] for row in turns_of(batch, dead))
    assert all(math.isnan(short.trace["rectified_gap"][row]) for row in turns_of(batch, dead))
    _, (_, teacher) = both_ways(batch, config(**changes, rectify=False), 2, 0.3)
    assert teacher.asked[0] == turns_of(batch, [0, 2, 4, 5]), "nothing is mixed"


@pytest.mark.parametrize("dead", [[], range(6)])
def test_groups_all_alike(dead: Sequence[int]) -> None:
    """All of them with an advantage are all asked about, at once; without any none is."""
    batch = some_batch(4, dead=dead)
    (whole, _), (short, teacher) = both_ways(batch, config(), 4, 1.0)
    assert teacher.asked == [[] if dead else list(range(len(batch)))]
    assert torch.equal(whole.advantages, short.advantages)
    assert dead or short.trace["span"] == whole.trace["span"]


def test_records_say_that_nobody_was_asked() -> None:
    batch = some_batch(1, dead=range(1, 6))
    _, (credit, _) = both_ways(batch, config(), 1, 1.0)
    trace, rest = credit.trace, turns_of(batch, range(1, 6))
    for name in ("teacher_thinking", "teacher_action", "span", "cut", "divergence", "rho", "alpha", "turn_share"):
        assert [trace[name][row] for row in rest] == [None] * len(rest)
    assert all(trace["sources"][row] == [] and trace["weight"][row] == 1.0 for row in rest)
    nothing = {name: [None] for name in ("teacher_thinking", "span", "cut")}
    assert [str(record_schema(trace_types(nothing)).field(f"credit_{name}").type) for name in nothing] == [
        *("string", "int64", "string"),
    ]


@pytest.mark.parametrize("spread", [0.3, 1.0])
@pytest.mark.parametrize("limits", [(0.01, 0.1), (0.0, 1.0)])
@pytest.mark.parametrize("dead", [([1, 3], range(6)), (range(1, 6), [0, 1, 2, 3, 4]), (range(6), range(6))])
def test_processes_ask_equally_often_and_agree_with_one(dead, limits: tuple[float, float], spread: float) -> None:
    """With other numbers of groups that need no thought on each, and with none that does on one of them."""
    settings = config(boundary_min=limits[0], boundary_max=limits[1], profile_temperature=1.0, max_span=3)
    method = get_method("align_opsd")(settings)

    def credits(lazy: bool):
        def process(rank: int, agree):
            batch, gathered = some_batch(10 + rank, dead=dead[rank]), []
            batch = replace(batch, scored=~not_scored(method, batch) if lazy else None)
            teacher = RandomTeacher(
                batch, rank, spread, lambda values: torch.cat(agree.each(gathered.append(1) or values))
            )
            return batch, checked_credit(method, batch, teacher, 0), teacher, len(gathered)

        found = on_processes(2, process)
        assert found[0][3] == found[1][3]
        return found

    short, whole = credits(lazy=True), credits(lazy=False)
    assert len(short[0][2].asked) == len(short[1][2].asked)
    for (batch, credit, *_), (_, expected, *_) in zip(short, whole, strict=True):
        assert torch.equal(credit.advantages, expected.advantages)
        live = [row for row in range(len(batch)) if batch.scored[row]]
        assert [credit.trace["span"][row] for row in live] == [expected.trace["span"][row] for row in live]
