from __future__ import annotations

import json

import pytest

from alignopsd_trl.environments.alfworld import suite
from alignopsd_trl.environments.alfworld.engine.games import list_games, read_game

KINDS = ("pick_and_place_simple", "look_at_obj_in_light", "pick_heat_then_place_in_recep")


def write(folder, kind, task="", solvable=True, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traj_data.json").write_text(json.dumps({"task_type": kind}))
    game = {
        "pddl_domain": "d",
        "grammar": '"rhs": "Your task is to: put a mug in desk."',
        "pddl_problem": f"p{task}",
        "solvable": solvable,
        "walkthrough": None,
    }
    (folder / "game.tw-pddl").write_text(json.dumps(game | changes))


@pytest.fixture
def split(tmp_path):
    root = tmp_path / "movable_heat" / "train"  # what stands above the split's folder means nothing
    write(root / "pick_and_place_simple-Mug-None-Desk-301" / "trial_b", KINDS[0])
    write(root / "pick_and_place_simple-Mug-None-Desk-301" / "trial_a", KINDS[0])
    write(root / "look_at_obj_in_light-Mug-None-DeskLamp-301" / "trial_c", KINDS[1])
    write(root / "pick_heat_then_place_in_recep-MugSliced-None-Desk-1" / "trial_d", KINDS[2])
    write(root / "pick_and_place_with_movable_recep-Pen-Mug-Desk-1" / "trial_e", "pick_and_place_with_movable_recep")
    write(root / "pick_heat_then_place_in_recep-Mug-None-Desk-2" / "trial_f", KINDS[2], solvable=False)
    write(root / "pick_heat_then_place_in_recep-Mug-None-Desk-2" / "trial_g", "other_type")
    write(root / "pick_heat_then_place_in_recep-Mug-None-Desk-3" / "trial_h", KINDS[2], solvable="yes")
    (root / "pick_heat_then_place_in_recep-Mug-None-Desk-2" / "trial_g" / "unrelated.txt").write_text("x")
    lonely = root / "pick_heat_then_place_in_recep-Mug-None-Desk-4" / "trial_i"
    lonely.mkdir(parents=True)
    (lonely / "traj_data.json").write_text("not even JSON: without a game it is not read")
    return root


def ids(rows):
    return [row["task_id"].split("/")[1] for row in rows]


def test_the_listing_rules_of_the_official_data(split):
    rows = list_games(split, "train")
    assert ids(rows) == ["trial_c", "trial_a", "trial_b"]
    assert rows[0] == {
        "task_id": "look_at_obj_in_light-Mug-None-DeskLamp-301/trial_c",
        "split": "train",
        "category": "Look",
        "task_type": "look_at_obj_in_light",
        "goal": "put a mug in desk",
        "digest": rows[1]["digest"],
    }
    assert ids(list_games(split, "train", ["pick_and_place_simple"], count=1)) == ["trial_a"]


def test_the_index_spares_reading_and_follows_changes(split, monkeypatch):
    expected = list_games(split, "train")
    with monkeypatch.context() as patch:
        patch.setattr(f"{list_games.__module__}._read_entry", lambda *_: pytest.fail("read again"))
        assert list_games(split, "train") == expected
    changed = split / expected[0]["task_id"]
    write(changed, KINDS[1], task="another")
    (split / expected[1]["task_id"] / "game.tw-pddl").unlink()
    rows = list_games(split, "train")
    assert ids(rows) == ["trial_c", "trial_b"] and rows[0]["digest"] != expected[0]["digest"]


def test_a_damaged_index_is_made_anew(split, cache_folder):
    expected = list_games(split, "train")
    newest = max((cache_folder / "index").glob("*.json"), key=lambda one: one.stat().st_mtime)
    newest.write_text("{")
    assert list_games(split, "train") == expected


def test_broken_files_are_named(split, tmp_path):
    folder = split / "pick_and_place_simple-Mug-None-Desk-301" / "trial_a"
    game = (folder / "game.tw-pddl").read_text()
    for damage, complaint in (
        (game[:50], "not a JSON file"),
        ("[]", "field 'pddl_domain'"),
        (game.replace("grammar", "grammer"), "field 'grammar'"),
    ):
        (folder / "game.tw-pddl").write_text(damage)
        for call in (lambda: list_games(split, "train"), lambda: read_game(folder)):
            with pytest.raises(ValueError, match=complaint) as caught:
                call()
            assert str(folder / "game.tw-pddl") in str(caught.value)
    (folder / "game.tw-pddl").write_text(game)
    (folder / "traj_data.json").write_text("{}")
    with pytest.raises(ValueError, match="trial_a/traj_data.json: field 'task_type'"):
        list_games(split, "train")
    with pytest.raises(FileNotFoundError, match="no such game"):
        read_game(tmp_path / "nowhere")


def test_an_absent_or_empty_split_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="alfworld-download"):
        list_games(tmp_path / "train", "train")
    with pytest.raises(ValueError, match="no playable game of type"):
        list_games(tmp_path, "train")


def test_official_suite(tmp_path, monkeypatch):
    from alfworld_files import games, needs_engine

    needs_engine()
    root = tmp_path / "json_2.1.1"
    for game in games().values():
        game.write(root / "valid_seen")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    official = suite(games="official", task_types=["heat", "5"], counts={"valid_seen": 3})
    wanted = sorted(one for one in games() if one.startswith(("pick_heat", "pick_cool")))[:3]
    panel = official.panel("valid_seen")
    assert list(panel.task_ids) == wanted == official.tasks("valid_seen")["task_id"][:]
    assert panel.checksum == official.panel("valid_seen").checksum
    environment = official.factory()
    opening = environment.reset(**panel.rows[0])
    assert opening.observation.endswith(f"Your task is to: {panel.rows[0]['goal']}.")
    assert opening.category == panel.rows[0]["category"]
    with pytest.raises(FileNotFoundError, match="no such game"):
        environment.reset(task_id="pick_and_place_simple-A-None-B-1/t", split="valid_seen")
    with pytest.raises(ValueError, match="split 'test' is unknown"):
        environment.reset(task_id=wanted[0], split="test")
    with pytest.raises(FileNotFoundError, match="alfworld-download"):
        official.tasks("train")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"games": "mine"}, "games='mine' is unknown"),
        ({"games": "official", "folder": "/nowhere"}, "/nowhere: no official ALFWorld games"),
        ({"task_types": ["boil"]}, "'boil' is unknown"),
        ({"counts": {"test": 3}}, "must map train, valid_seen, valid_unseen"),
        ({"engine": "slow"}, "engine='slow' is unknown"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_options_are_refused(options, complaint):
    from alfworld_files import needs_engine

    needs_engine()
    with pytest.raises((ValueError, FileNotFoundError), match=complaint):
        suite(**options)
