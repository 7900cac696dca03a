from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from alfworld_files import needs_engine

from alignopsd_trl.environments.alfworld import TASK_TYPES, Explorer, Factory, Walkthrough, play, suite
from alignopsd_trl.environments.alfworld.engine.generator import Variant, draw, generate_all, prove
from alignopsd_trl.environments.alfworld.engine.rooms import KINDS, layout, scenes
from alignopsd_trl.environments.base import Failure
from alignopsd_trl.environments.batch import ThreadedBatch

needs_engine()

TYPES = tuple(TASK_TYPES.values())
SMALL = [(kind, seed) for kind in TYPES for seed in range(5)]
HASHES = """
import hashlib, sys
from alignopsd_trl.environments.alfworld.engine.generator import draw
from alignopsd_trl.environments.alfworld.engine.categories import TASK_TYPES
for kind in TASK_TYPES.values():
    for seed in range(int(sys.argv[1])):
        game = draw(kind, seed)
        print(kind, seed, hashlib.sha256(repr(game).encode()).hexdigest())
"""


def hashes(count, hash_seed):
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", HASHES, str(count)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def games():
    batch = ThreadedBatch(Factory(), 1, time_limit=600)
    found = generate_all(SMALL, batch, 1)
    batch.close()
    return found


def test_thirty_games_are_solvable_and_none_is_won_before_the_last_step(games):
    assert [game.row("train")["task_type"] for game in games] == [kind for kind, _ in SMALL]
    environment = Factory()()
    for game in games:
        moves = play(environment, Walkthrough(game.walkthrough), {"task_id": game.task_id, "game": game.joined()})
        assert [move.step.won for move in moves] == [False] * (len(game.walkthrough) - 1) + [True], game.task_id
        assert moves[0].view.task_text == f"{game.goal}." and 3 <= len(moves) <= 14


def test_drawing_is_the_same_under_any_hash_seed():
    assert hashes(5, 1) == hashes(5, 2) != ""


def test_seeds_and_attempts_give_different_games():
    kind = TYPES[0]
    assert len({draw(kind, seed, attempt).pddl_problem for seed in range(5) for attempt in range(2)}) == 10


def test_games_cover_rooms_sizes_lamps_wordings_and_shared_places():
    drawn = {kind: [draw(kind, seed) for seed in range(60)] for kind in TYPES}
    for kind, some in drawn.items():
        assert len({re.sub("|".join(rf"\b{word}\b" for word in words(game)), "_", game.goal) for game in some}) == 2, (
            kind
        )
    lamps = Counter(game.traj_data["pddl_params"]["toggle_target"] for game in drawn[TYPES[1]])
    assert set(lamps) == {"DeskLamp", "FloorLamp"}
    sizes = {len(re.findall(r"\(receptacleType [A-Z]", game.pddl_problem)) for some in drawn.values() for game in some}
    assert min(sizes) == 5 and max(sizes) == 20
    rooms = {kind: {game.traj_data["scene"]["scene_num"] // 100 for game in some} for kind, some in drawn.items()}
    assert rooms[TYPES[0]] == rooms[TYPES[5]] == {0, 2, 3, 4}
    assert (rooms[TYPES[1]], rooms[TYPES[2]], rooms[TYPES[3]]) == ({2, 3}, {0, 4}, {0})
    places = [re.findall(r"\(receptacleAtLocation \S+ (\S+)\)", game.pddl_problem) for game in drawn[TYPES[0]]]
    assert 0 < sum(len(set(place)) < len(place) for place in places) < len(places)


def words(game):
    params = game.traj_data["pddl_params"]
    return [
        word.lower() for word in (params["object_target"], params["parent_target"], params["toggle_target"]) if word
    ]


def test_held_out_rooms_are_never_training_rooms():
    for kind in KINDS:
        assert not set(scenes(kind, held_out=True)) & set(scenes(kind, held_out=False))
    seen = {draw(TYPES[0], seed).traj_data["scene"]["scene_num"] for seed in range(50)}
    unseen = {draw(TYPES[0], seed, variant=Variant(True)).traj_data["scene"]["scene_num"] for seed in range(50)}
    assert not seen & unseen


def test_a_scene_is_one_room():
    assert layout(7) == layout(7) != layout(8)
    assert {layout(scene).kind for scene in (1, 201, 301, 401)} == set(KINDS)
    assert all(18 <= len(layout(scene, (18, 20)).receptacles) <= 20 for kind in KINDS for scene in scenes(kind, False))


def test_a_game_whose_walkthrough_fails_is_not_proven(games):
    from dataclasses import replace

    batch = ThreadedBatch(Factory(), 4, time_limit=600)
    game = games[0]
    wrong = [
        replace(game, walkthrough=("look", *game.walkthrough[:-1])),
        replace(game, walkthrough=(*game.walkthrough, "look")),
        replace(game, walkthrough=("dance", *game.walkthrough)),
        game,
    ]
    assert prove(wrong, batch) == [False, False, False, True]
    batch.close()


def test_an_engine_that_fails_is_not_taken_for_a_bad_game(games):
    class Broken:
        def reset(self, slots, tasks):
            return [Failure("error", "no space left") for _ in slots]

    with pytest.raises(RuntimeError, match="no space left"):
        prove(games[:2], Broken())


def test_explorer_wins_every_one_of_the_thirty(games):
    environment = Factory()()
    for game in games:
        task = {"task_id": game.task_id, "game": game.joined()}
        moves = play(environment, Explorer(), task)
        assert moves[-1].step.won and len(moves) <= 50, game.task_id
        assert all(environment.project(move.response).valid for move in moves)
        assert all(move.action in move.view.admissible for move in moves)


def test_explorer_with_errors_is_worse_and_repeatable(games):
    environment = Factory()()
    lengths = {}
    for rate in (0.0, 0.4, 1.0):
        expert = Explorer(rate, seed=3)
        runs = [play(environment, expert, {"task_id": g.task_id, "game": g.joined()}) for g in games[::3]]
        again = play(environment, expert, {"task_id": games[0].task_id, "game": games[0].joined()})
        assert [move.action for move in again] == [move.action for move in runs[0]]
        lengths[rate] = sum(map(len, runs))
    assert lengths[0.0] < lengths[0.4] < lengths[1.0]


def test_suite_of_generated_games():
    alfworld = suite(counts={"train": 6, "valid_unseen": 3})
    rows = alfworld.tasks("train")
    assert rows["category"][:] == list(alfworld.categories) == ["Pick", "Look", "Clean", "Heat", "Cool", "Pick2"]
    assert {"task_id", "split", "goal", "digest"} <= set(rows.column_names)
    panel = alfworld.panel("valid_unseen")
    assert len(panel) == 3 and panel.head(2).task_ids == panel.task_ids[:2]
    longer = suite(counts={"train": 7}).tasks("train")
    assert longer["task_id"][:6] == rows["task_id"][:]
    assert suite(counts={"valid_unseen": 3}).panel("valid_unseen").checksum == panel.checksum
    assert alfworld.description["games"] == "generated" and alfworld.description["versions"]["textworld"]
    batch = alfworld.factory.batch(3, workers=1)  # ty: ignore[missing-attribute]
    openings = batch.reset(range(3), list(panel))
    assert [opening.task_text for opening in openings] == [f"{row['goal']}." for row in panel]
    assert [opening.category for opening in openings] == [row["category"] for row in panel]
    for odd in ("", "x" * 100_000, "\0", "看", " Look", "\ud800"):
        assert [step.observation for step in batch.step(range(3), [odd] * 3)] == ["Nothing happens."] * 3
    assert all(step.observation != "Nothing happens." for step in batch.step(range(3), ["look", "help ", "inventory"]))
    with pytest.raises(ValueError, match="split 'test' is unknown"):
        alfworld.panel("test")
    batch.close()


def test_gymnasium_face():
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    environment = gymnasium.make("alignopsd_trl.environments.alfworld:ALFWorld-v0", counts={"train": 6}, max_turns=2)
    check_env(environment.unwrapped, skip_render_check=True)
    _, info = environment.reset(seed=1, options={"index": 3})
    assert info["category"] == "Heat" and "look" in info["admissible_commands"]
    outcomes = [environment.step("look")[1:4] for _ in range(2)]
    assert outcomes == [(0.0, False, False), (0.0, False, True)]
    environment.close()


def test_a_person_can_play():
    from alignopsd_trl.environments.alfworld.engine.generator import draw

    commands = "\n".join(["", "99", "fly away", "hint", "1", *draw("pick_heat_then_place_in_recep", 3).walkthrough])
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "alignopsd_trl.environments.alfworld", "--type", "heat", "--seed", "3"]
    done = subprocess.run(command, input=commands, capture_output=True, text=True, env=environment)
    assert "Your task is to:" in done.stdout and "won: True | score: 1" in done.stdout, done.stderr
    assert done.stdout.count("cost nothing") == 3
    early = subprocess.run([*command[:4], "boil"], capture_output=True, text=True, env=environment)
    assert early.returncode == 1 and early.stderr.startswith("task type 'boil' is unknown")
