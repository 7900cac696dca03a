"""Worlds of others, as `alignopsd new` connects them, against the worlds alone. `.ci/worlds` installs them.

The cases are those of the file that ``WORLD_CASES`` names, by default ``tests/data/worlds/cases.json``.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from alignopsd_trl.commands.own_task.playing import play, scripted
from alignopsd_trl.commands.own_task.scaffold import write_task
from alignopsd_trl.commands.own_task.warm_start.tiny import WordCount
from alignopsd_trl.environments import Opening, Step, load, open_batch
from alignopsd_trl.environments.generators import RandomStream
from alignopsd_trl.skills import load_skills, skill_source

pytestmark = [pytest.mark.slow, pytest.mark.worlds]
OWN = Path(__file__).parents[1] / "data" / "worlds" / "cases.json"
CASES = json.loads(Path(os.environ.get("WORLD_CASES", OWN)).read_text())
SIBLINGS, RESETS, SEED = 8, 200, 5
WORST = (
    "save",
    "restore",
    "RESTART",
    "quit",
    "undo",
    "again",
    "look\nlook",
    "reset task",
    "[1]\n[2]",
    "",
    "script",
    "look. z",
)
Trace = list[tuple[Any, ...]]


def _cases(*kinds: str, most: int | None = None) -> list[Any]:
    return [pytest.param(kind, asked, id=f"{kind} {asked}") for kind in kinds for asked in CASES.get(kind, ())[:most]]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes a world's task and returns its suite."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(kind: str, asked: str) -> Any:
        pytest.importorskip(kind)
        importlib.invalidate_caches()
        name = f"a_{kind}_{abs(hash((kind, asked, str(tmp_path)))) % 10**8}"
        asked, *drawn = asked.split(" --seen ")
        write_task(tmp_path / name, kind, asked, "tiny", {"seen": drawn[0]} if drawn else {})
        monkeypatch.syspath_prepend(str(tmp_path / name))
        return load(name)

    yield write


def _row(suite: Any) -> dict[str, Any]:
    return {**suite.tasks("train")[2 % len(suite.tasks("train"))], "seed": SEED}


def _told(one: Any) -> tuple[Any, ...]:
    assert isinstance(one, Opening | Step), one
    return (one.observation, *((one.reward, one.done) if isinstance(one, Step) else (one.task_text,)))


def _played(suite: Any, actions: Sequence[str], siblings: int = SIBLINGS) -> list[Trace]:
    """Plays actions by siblings side by side, each turn of all before the next."""
    with closing(open_batch(suite.factory, siblings)) as batch:
        siblings = batch.slots
        traces = [[_told(one)] for one in batch.reset(range(siblings), [_row(suite)] * siblings)]
        for action in actions:
            for trace, step in zip(traces, batch.step(range(siblings), [action] * siblings), strict=True):
                trace.append(_told(step))
            if traces[0][-1][2]:
                break
    return traces


def _equal(suite: Any, actions: Sequence[str], expected: Trace) -> None:
    first, *others = _played(suite, actions)
    assert all(one == first for one in others), "siblings differ"
    assert len(first) == len(expected)
    for number, (ours, own) in enumerate(zip(first, expected, strict=True)):
        assert ours[0] == own[0], f"observation {number}"
        assert ours[1] == (own[1] if not number else pytest.approx(own[1])), f"reward {number}"
        assert ours[2:] == own[2:], f"end {number}"


@pytest.mark.parametrize("kind, asked", _cases("scienceworld"))
def test_gold_paths_of_scienceworld(kind: str, asked: str, written: Any) -> None:
    suite = written(kind, asked)
    make, variation = importlib.import_module(kind).ScienceWorldEnv, _row(suite)["variation"]
    planner = make("")
    planner.load(asked, variation, "easy", generateGoldPath=True)
    path = planner.get_gold_action_sequence()
    planner.close()
    world = make("", envStepLimit=1000)  # its chance depends on all that it did before
    world.load(asked, variation, "easy")
    seen, info = world.reset()
    expected: Trace = [(seen, info["taskDesc"].replace("Task Description:", "").strip())]
    for action in path:
        seen, reward, done, info = world.step(action)
        shown = f"{seen}\n{info['look']}" if seen.startswith("You move to ") else seen
        expected.append((shown, reward / 100, done))
        if done:
            break
    world.close()
    assert info["score"] == 100
    _equal(suite, path, expected)
    assert suite.factory.max_turns >= len(path)


@pytest.mark.parametrize("kind, asked", _cases("textworld"))
def test_walkthroughs_of_textworld(kind: str, asked: str, written: Any) -> None:
    suite = written(kind, asked)
    textworld = importlib.import_module(kind)
    with closing(open_batch(suite.factory, 1)) as batch:
        batch.reset([0], [_row(suite)])  # generates the game
    file = importlib.import_module(suite.name).game(_row(suite)["number"])
    told = textworld.EnvInfos(description=True, objective=True, max_score=True, extras=["walkthrough"])
    world = textworld.start(file, told)
    state = world.reset()
    plain = lambda text: " ".join(text.rsplit("\n>", 1)[0].split())  # noqa: E731
    expected: Trace = [(plain(state.description), plain(state.objective))]
    path, before = state["extra.walkthrough"], 0
    for action in path:
        state, score, done = world.step(action)
        expected.append((plain(state.feedback), (score - before) / state.max_score, done))
        before = score
    world.close()
    assert done and sum(reward for _, reward, _ in expected[1:]) == pytest.approx(1)
    _equal(suite, path, expected)


@pytest.mark.parametrize("kind, asked", _cases("textarena"))
def test_seeded_games_of_textarena(kind: str, asked: str, written: Any) -> None:
    suite = written(kind, asked)
    textarena, stream = importlib.import_module(kind), RandomStream()
    stream.begin(_row(suite)["number"])
    moves, draw, expected = [], random.Random(0), []
    stream.install()
    game = textarena.make(f"{asked}-raw")
    game.reset(num_players=1, seed=_row(suite)["number"])
    rules, *board = [str(text) for _, text, _ in game.get_observation()[1]]
    shown = importlib.import_module(suite.name).SHOWN
    expected.append(("\n".join(board), "\n".join(rules.splitlines()[shown])))
    done = False
    examples = re.findall(r"\[[^\[\]\n]{1,24}\]", "\n".join([rules, *board])) or ["[1]"]
    while not done and len(moves) < 40:
        moves.append(draw.choice(["no move", *examples]))
        done, _ = game.step(moves[-1] if "[" in moves[-1] else f"[{moves[-1]}]")
        said = [
            str(text)
            for _, text, kind in game.get_observation()[1]
            if kind is not textarena.ObservationType.PLAYER_ACTION
        ]
        reward = game.close()[0][0] if done else 0.0
        expected.append(("\n".join(said), 0.0 if isinstance(reward, str) else reward, done))
    stream.keep()
    _equal(suite, moves, expected)


TOLD = [
    ("textarena", "GuessTheNumber-v0"),
    ("textarena", "Mastermind-v0"),
    ("textarena", "Secretary-v0"),
    ("textarena", "TowerOfHanoi-v0"),
    ("reasoning_gym", "chain_sum"),
    ("gymnasium", "Taxi-v4 --seen drawn"),
    ("gymnasium", "CliffWalking-v1 --seen drawn"),
    ("textworld", "nb_rooms=6,quest_length=4"),
    ("scienceworld", "lifespan-longest-lived"),
]


@pytest.mark.parametrize("kind, asked", TOLD)
def test_the_text_that_the_teacher_reads_is_true_and_wins(kind: str, asked: str, written: Any) -> None:
    suite = written(kind, asked)
    rows = list(suite.tasks("train"))[:4]
    skills = skill_source(load_skills(suite.skill_bank), WordCount(), 10_000)
    played = play(suite.factory, rows, scripted(suite.name, None), skills=skills, skilled_share=1.0)
    assert all(one.trajectory.won for one in played), [one.trajectory.skill_text for one in played]


def test_a_way_is_found_over_boards_that_are_arrays(written: Any) -> None:
    suite = written("textarena", "Sokoban-v0")
    skills = skill_source(load_skills(suite.skill_bank), WordCount(), 10_000)
    played = play(
        suite.factory, [list(suite.tasks("train"))[3]], scripted(suite.name, None), skills=skills, skilled_share=1.0
    )
    assert played[0].trajectory.won, "seven moves"


@pytest.mark.parametrize("kind, asked", _cases("reasoning_gym", "gymnasium"))
def test_siblings_of_other_worlds_are_equal(kind: str, asked: str, written: Any) -> None:
    suite = written(kind, asked)
    draw = random.Random(0)
    actions = [draw.choice("0123") for _ in range(12)]
    first, *others = _played(suite, actions)
    assert all(one == first for one in others)


LIGHT, HEAVY = ("textarena", "gymnasium", "reasoning_gym"), ("scienceworld", "textworld")


@pytest.mark.parametrize("kind, asked", [*_cases(*LIGHT), *_cases(*HEAVY, most=1)])
def test_an_episode_alone_is_the_one_beside_four_that_do_their_worst(kind: str, asked: str, written: Any) -> None:
    suite = written(kind, asked)
    actions = _actions(kind, suite)
    random.seed(1)
    alone = _beside(suite, actions, 0)
    random.seed(2)
    assert _beside(suite, actions, 4) == alone
    assert len(alone) > 1
    if kind == "textworld":
        assert alone[-1][2] and sum(one[1] for one in alone[1:]) == pytest.approx(1), "the way was not the way"


def _actions(kind: str, suite: Any) -> list[str]:
    """Moves of a world, for TextWorld the way to the end with the worst words between them."""
    one, draw = suite.factory(), random.Random(0)
    opened = one.reset(**_row(suite))
    with closing(one):
        if kind == "scienceworld":
            return list(importlib.import_module(suite.name).way(_row(suite)["variation"]))
        if kind == "textworld":
            told = importlib.import_module(f"{suite.name}_skills").hint("", _row(suite))
            return [word for command in told.partition(": ")[2].split("; ") for word in (*WORST, command)]
    examples = re.findall(r"\[[^\[\]\n]{1,24}\]", f"{opened.task_text}\n{opened.observation}")
    return [draw.choice(examples or list("0123")) for _ in range(20)]


def _beside(suite: Any, actions: Sequence[str], others: int) -> Trace:
    """Plays an episode in turns with others, which reset, seed what the process has, and give the worst actions."""
    one, rows = suite.factory(), [dict(row) for row in suite.tasks("train")]
    beside, ended = [suite.factory() for _ in range(others)], [True] * others
    trace = [_told(one.reset(**_row(suite)))]
    for turn, action in enumerate(actions):
        for place, other in enumerate(beside):
            if ended[place] or turn % 7 == place:
                other.reset(**rows[(turn + place) % min(4, len(rows))], seed=turn)
            np.random.seed(turn)
            random.seed(turn)
            ended[place] = other.step((*WORST, action)[(turn + place) % (len(WORST) + 1)]).done
        trace.append(_told(one.step(action)))
        if trace[-1][2]:
            break
    for each in (one, *beside):
        each.close()
    return trace


@pytest.mark.parametrize("kind, asked", [*_cases("textarena"), *_cases(*HEAVY, most=1)])
def test_a_line_break_makes_no_second_move(kind: str, asked: str, written: Any) -> None:
    suite = written(kind, asked)
    action = _actions(kind, suite)[-1 if kind == "textworld" else 0]
    with closing(suite.factory()) as one, closing(suite.factory()) as other:
        one.reset(**_row(suite))
        other.reset(**_row(suite))
        for both in (f"{action}\n{action}", f"look\r\n{action}"):
            step = one.step(both)
            assert (step.valid, step.reward, step.done) == (False, 0.0, False)
        assert _told(one.step(action)) == _told(other.step(action))


@pytest.mark.parametrize("kind", ["scienceworld", "textworld", "textarena", "gymnasium", "reasoning_gym"])
def test_a_world_that_was_played_opens_like_a_new_one(kind: str, written: Any) -> None:
    suite, letters = written(kind, CASES[kind][0]), []
    with closing(open_batch(suite.factory, 2)) as batch:
        for number, row in enumerate([dict(row) | {"seed": SEED} for row in suite.tasks("train")][:12]):
            opened = batch.reset([0, 1], [row, row])
            assert all(isinstance(one, Opening) for one in opened), opened
            assert batch.openings_may_differ or opened[0] == opened[1], f"row {number}"
            letters.append([sorted(one.observation + one.task_text) for one in opened])
            for _ in range(number % 4):
                batch.step([1], ["look around"])
    assert all(one == other for one, other in letters), "more than an order differs"


@pytest.mark.parametrize("kind", ["scienceworld", "textworld", "textarena", "gymnasium"])
def test_two_hundred_resets_leave_nothing(kind: str, written: Any) -> None:
    suite, process = written(kind, CASES[kind][0]), psutil.Process()
    before = {one.pid for one in process.children(recursive=True)}
    with closing(open_batch(suite.factory, 2)) as batch:
        rows = [dict(row) for row in suite.tasks("train")]
        for number in range(RESETS // 2):
            found = batch.reset([0, 1], [{**rows[(number + one) % 8], "seed": SEED} for one in (0, 1)])
            assert all(isinstance(one, Opening) for one in found), found
            if number == 20:
                held = _held(process)
        assert _held(process) < held + 60e6, "memory grows"
    end, idle = time.monotonic() + 10, 3 if kind == "scienceworld" else 0  # of Java, two for later environments
    while len({one.pid for one in process.children(recursive=True)} - before) > idle and time.monotonic() < end:
        time.sleep(0.1)
    assert len({one.pid for one in process.children(recursive=True)} - before) <= idle, "a process is left"


def _held(process: psutil.Process) -> int:
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
