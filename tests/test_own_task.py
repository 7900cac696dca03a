"""A task of one's own from nothing, through the commands."""

from __future__ import annotations

import json
import math
import os
import random
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.tool_classes import chat_tokenizer
from safetensors.torch import load_file

from alignopsd_trl.cli import main
from alignopsd_trl.runs.files import replacing


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Modules of written tasks are forgotten afterwards."""
    known, places = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = places
    for name in set(sys.modules) - known:
        if name.startswith(("maze", "guessing")):
            del sys.modules[name]


@pytest.fixture
def maze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Path:
    """A folder as ``alignopsd new`` leaves it, entered."""
    monkeypatch.chdir(tmp_path)
    main(["new", "maze", "--model", "tiny"])
    monkeypatch.chdir(tmp_path / "maze")
    return tmp_path / "maze"


def _rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _fails(argv: list[str], *words: str, capsys: pytest.CaptureFixture[str], status: int = 2) -> None:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capsys.readouterr().err
    assert ended.value.code == status, said
    assert all(word in said for word in words), said
    assert "Traceback" not in said and len(said.strip().splitlines()) == 1, said


def test_the_written_task_is_one_that_can_be_played(maze: Path) -> None:
    names = {"maze.py", "maze_player.py", "maze_skills.json", "train.py", "study.yaml", "README.md"}
    assert names <= {file.name for file in maze.iterdir()}
    assert not [file for file in maze.iterdir() if "my_task" in file.read_text() or "MyTask" in file.read_text()]
    assert len((maze / "README.md").read_text().splitlines()) <= 10
    from alignopsd_trl.environments import load

    suite = load("maze")
    assert (len(suite.tasks("train")), len(suite.panel("test"))) == (1024, 100)


@pytest.mark.parametrize("installed", [True, False])
def test_the_written_recipe_starts_from_smollm2_where_its_extra_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: bool
) -> None:
    from alignopsd_trl.own_task import scaffold

    monkeypatch.setattr(scaffold, "has_smollm2", lambda: installed)
    monkeypatch.chdir(tmp_path)
    main(["new", "maze"])
    said, recipe = capsys.readouterr().out, runpy.run_path("maze/train.py")
    assert recipe["START"].model == ("smollm2" if installed else "tiny")
    assert recipe["PRESET"].get("use_peft", False) is installed
    assert ("--model tiny" if installed else "offline]' for SmolLM2") in said


def test_a_warm_start_is_as_the_recipe_says_unless_flags_differ(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = (maze / "train.py").read_text()
    (maze / "train.py").write_text(recipe.replace('model="tiny"', 'model="tiny", max_steps=2, batch_size=4'))
    main(["demonstrate", "maze", "--episodes", "4"])
    main(["warm_start", "maze", "--tasks", "0", "--layers", "1"])
    assert "2 updates" in capsys.readouterr().out


@pytest.mark.full
def test_a_recipe_says_what_its_first_policy_wins_with_and_without_the_skill(
    maze: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.own_task.first_policy import first_policy
    from alignopsd_trl.own_task.options import WarmStartConfig

    recipe = (maze / "train.py").read_text()
    (maze / "train.py").write_text(recipe.replace('"environment"', '"eval_temperature": 0.7, "environment"'))
    first_policy("maze", "made", [], config=WarmStartConfig(max_steps=1, layers=1, batch_size=4), episodes=40)
    said = capsys.readouterr().out
    played = said[said.index("training tasks, played by the first policy in made:") :]
    assert "without the skill:\n" in played and "with it:\n" in played
    assert "temperature 0.7," in played  # the recipe's
    assert "look: the policy hardly reads the skill" in played  # it learnt nothing from one update


def test_demonstrations_are_prompts_that_a_policy_reads_with_and_without_skills(maze: Path) -> None:
    main(["demonstrate", "maze", "--episodes", "6", "--output", "some.jsonl"])
    rows = _rows(maze / "some.jsonl")
    plain, skilled = ([row for row in rows if row["skilled"] is kind] for kind in (False, True))
    assert plain and skilled
    for row in rows:
        (system, shown), (answer,) = row["prompt"], row["completion"]
        assert (system["role"], shown["role"], answer["role"]) == ("system", "user", "assistant")
        assert ("Guidance for this kind of task" in shown["content"]) is row["skilled"]
        assert answer["content"].startswith("<think>") and answer["content"].endswith("</action>")
    first = next(row for row in plain if row["turn"] == 0)
    assert first["prompt"][-1]["content"].startswith("Leave the maze of the ")


@pytest.mark.parametrize(
    ("share", "skilled"), [(0.25, [0, 0, 0, 1] * 3), (0.0, [0] * 12), (1.0, [1] * 12), (0.5, [0, 1] * 6)]
)
def test_a_share_of_the_episodes_is_played_under_the_skill(maze: Path, share: float, skilled: list[int]) -> None:
    main(["demonstrate", "maze", "--episodes", "12", "--skilled_share", str(share)])
    opened = [row for row in _rows(maze / "demonstrations.jsonl") if row["turn"] == 0]
    assert [row["skilled"] for row in opened] == skilled


@pytest.mark.parametrize("source", ["next_observation", "sibling_action"])
def test_demonstrations_show_what_to_do_beside_a_text_that_is_known_after_play(maze: Path, source: str) -> None:
    said = {
        "next_observation": r"After the action (go \w+) you will see: Doors: ",
        "sibling_action": r"In this situation a better attempt did: (go \w+)\n",
    }[source]
    main(["demonstrate", "maze", "--episodes", "16", "--privileged", source, "--won_only", "--output", "some.jsonl"])
    rows = _rows(maze / "some.jsonl")
    told, plain = ([row for row in rows if row["skilled"] is kind] for kind in (True, False))
    assert told and plain and all(row["won"] for row in plain)
    assert len({row["task_id"] for row in rows}) <= 2, "eight siblings a task"
    assert not [row for row in plain if re.search(said, row["prompt"][-1]["content"])]
    shown = [re.search(said, row["prompt"][-1]["content"])[1] for row in told]
    done = [re.search("<action>(.*)</action>", row["completion"][0]["content"])[1] for row in told]
    if source == "sibling_action":
        assert shown == done and not all(row["won"] for row in told)
    else:
        assert len({one == two for one, two in zip(shown, done, strict=True)}) == 2, "kept where it led on, else not"


def test_without_a_better_sibling_nothing_is_told(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--privileged", "sibling_action", "--skilled_share", "1"]
    _fails(["demonstrate", "maze", "--episodes", "1", *flags], "text", "raise --episodes", capsys=capsys)


def test_a_task_of_tools_is_written_played_and_demonstrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "digits_to_find", "--tools", "--model", "tiny"])
    main(["check", "digits_to_find", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    main(["check", "digits_to_find/digits_to_find.py:DigitsToFind", "--episodes", "4", "--rows", _tool_rows(tmp_path)])
    assert "guess(number: int)" in capsys.readouterr().out
    main(["demonstrate", "digits_to_find", "--episodes", "4"])
    assert "<action>guess(number=" in _rows(tmp_path / "demonstrations.jsonl")[0]["completion"][0]["content"]


def _tool_rows(folder: Path) -> str:
    rows = [{"prompt": "Find the number.", "number": number} for number in (0, 5, 10, 15)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["demonstrate", "nowhere"], ["nowhere", "unknown"]),
        (["demonstrate", "maze", "--player", "maze_player:nobody"], ["nobody", "play(view"]),
        (["demonstrate", "maze", "--player", "maze"], ["MODULE:FUNCTION"]),
        (["demonstrate", "maze:SIDE"], ["int", "class"]),
        (["demonstrate", "maze:Nothing"], ["Nothing"]),
        (["demonstrate", "maze", "--episodes", "0"], ["--episodes 0"]),
        (["demonstrate", "maze", "--skilled_share", "1.5"], ["skilled_share=1.5", "from 0 to 1"]),
        (["demonstrate", "maze", "--privileged", "nothing"], ["privileged='nothing'", "sibling_action"]),
        (["demonstrate", "maze", "--max_prompt_length", "20"], ["max_prompt_length=20"]),
        (
            ["demonstrate", "maze", "--endpoint", "http://127.0.0.1:9/v1"],
            ["endpoint http://127.0.0.1:9/v1 can't be reached"],
        ),
        (["demonstrate", "maze", "--player", "broken:play"], ["broken.py", "ZeroDivisionError"]),
        (["warm_start", "maze", "--data", "none.jsonl"], ["none.jsonl", "alignopsd demonstrate"]),
        (["warm_start", "maze", "--data", "nonsense.jsonl"], ["nonsense.jsonl, line 1", "prompt"]),
        (["warm_start", "maze", "--data", "torn.jsonl"], ["torn.jsonl, line 3", "alignopsd demonstrate"]),
        (["warm_start", "maze", "--data", "."], ["--data . is a folder"]),
        (["warm_start", "maze", "--learning_rate", "nan"], ["--learning_rate nan"]),
        (["warm_start", "maze", "--minutes", "inf"], ["--minutes inf"]),
        (["warm_start", "maze", "--until_success", "30"], ["--until_success 30", "1 at most"]),
        (["warm_start", "maze", "--max_steps", "0"], ["--max_steps 0"]),
        (["new", "maze-2"], ["maze-2", "underscores"]),
        (["new", "../maze"], ["not empty"]),
        (["new", "json"], ["json", "installed"]),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence_and_leaves_nothing(
    maze: Path, argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (maze / "broken.py").write_text("def play(view, **given):\n    return 1 / 0\n")
    (maze / "nonsense.jsonl").write_text('{"text": "hello"}\n')
    (maze / "torn.jsonl").write_text('{"prompt": [{"role": "user"}], "completion": [{"role": "a"}]}\n\n{"prompt": [\n')
    before = sorted(file.name for file in maze.iterdir() if file.name != "__pycache__")
    _fails(argv, *words, capsys=capsys)
    assert sorted(file.name for file in maze.iterdir() if file.name != "__pycache__") == before


def test_nothing_is_found_in_the_written_task(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "maze", "--episodes", "8"])
    said = capsys.readouterr().out
    assert "nothing found" in said and "[user]\nLeave the maze of the " in said
    assert re.search(r"random play: .* on average\n", said)
    apart = re.search(r"scripted player: .* on average \((\S+) with the skill, (\S+) without it\)", said)
    assert apart and float(apart[1]) >= float(apart[2])


FAULTS = {
    "siblings": (
        "maze.py",
        "self.room, self.exit, self.builders = tuple(start)",
        "self.room, self.exit, self.builders = random.choice(list(self.towards))",
        "differently",
    ),
    "siblings open": ("maze.py", "return Opening(self._shown()", "return Opening(str(random.random())", "differently"),
    "leftovers": ("maze.py", "self.visits = {self.room: 1}", "self.visits = getattr(self, 'visits', {})", "otherwise"),
    "replay": ("maze.py", "valid = action in self._actions()", "valid = random.random() < 0.5", "the same actions"),
    "type of an observation": (
        "maze.py",
        "        return Step(\n            seen",
        "        return Step(\n            None",
        "observation",
    ),
    "type of a reward": ("maze.py", "reward=float(won)", "reward=str(won)", "reward"),
    "large rewards": ("maze.py", "reward=float(won)", "reward=1000.0 * won", "1000"),
    "rewards that never differ": ("maze.py", "reward=float(won)", "reward=0.0", "nothing is learnt"),
    "rewards upside down": ("maze.py", "reward=float(won)", "reward=1.0 - won", "teach to lose"),
    "an episode that never ends": ("maze.py", "done=won", "done=False", "Step.done"),
    "an episode that ends at once": ("maze.py", "done=won", "done=True", "first turn"),
    "a hang": (
        "maze.py",
        "        valid = action",
        "        import time; time.sleep(30)\n        valid = action",
        "--time_limit",
    ),
    "an error": ("maze.py", "valid = action in", "valid = 1 / 0 or action in", "ZeroDivisionError"),
    "an unknown action that fails": (
        "maze.py",
        "valid = action in self._actions()",
        "valid = action.split()[1] in MOVES and action in self._actions()",
        "any string",
    ),
    "an unknown action that counts": ("maze.py", "valid=valid", "valid=True", "counts as valid"),
    "an unknown action that wins": (
        "maze.py",
        "won = self.room == self.exit",
        "won = not valid or self.room == self.exit",
        "give nothing for it",
    ),
    "won by everybody": ("maze.py", "done=won, won=won", "done=won, won=True", "random play won all"),
    "won by nobody": ("maze.py", "done=won, won=won", "done=won, won=False", "won none"),
    "a sum that is paid again": (
        "maze.py",
        "reward=float(won), done=won",
        "reward=0.5 * (sum(self.visits.values()) - 2 if won else valid), done=won",
        "paid twice",
    ),
    "an offer that is refused": ("maze.py", "valid=valid", "valid=False", "offered and refused"),
    "a skill for nobody": ("maze.py", "the maze of the {builders}", "the maze of the masons", "weavers"),
    "a bank of something else": ("maze_skills.json", '"environment": "maze"', '"environment": "house"', "house"),
    "a damaged bank": ("maze_skills.json", '"schema"', "schema", "JSON"),
    "no room for a prompt": ("train.py", '"max_prompt_length": 320', '"max_prompt_length": 60', "max_prompt_length=60"),
    "no room for a response": (
        "train.py",
        '"max_completion_length": 32',
        '"max_completion_length": 8',
        "longest response",
    ),
    "a player that fails": ("maze_player.py", "ways = ", "ways = 1 / 0 or ", "ZeroDivisionError"),
    "a player that is no better than chance": (
        "maze_player.py",
        "draw.choice(told or new)",
        "draw.choice(environment.ways())",
        "random play's",
    ),
    "a player that does not answer": ("maze_player.py", "<action>", "<act>", "invalid actions"),
    "tasks that are one": ("maze.py", "maze(first + number)", "maze(first)", "tasks are one"),
    "a panel that is trained on": ("maze.py", "10_000", "0", "trained on"),
    "names that are one": ("maze.py", "/{split}/{number}", "/{split}", "task_id"),
}


def test_a_check_shows_a_demonstrated_turn_and_what_its_parts_cost(
    maze: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "maze", "--episodes", "4", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["answer"].startswith("<think>") and "[user]" in report["prompt"]
    tokens = report["tokens"]
    assert all(tokens[name] for name in ("system and marks", "task", "skill", "observation", "answer"))
    assert tokens["options"] == tokens["other lines"] == 0, "the short prompt has neither"
    main(["check", "maze", "--episodes", "4"])
    assert f", observation {tokens['observation']}, answer" in capsys.readouterr().out


def test_a_check_with_a_model_estimates_the_seconds_of_a_round(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "maze", "--episodes", "4", "--model", "tiny_hops", "--max_completion_length", "64"])
    assert re.search(r"a round of 64 episodes of [0-9.]+ turns takes about [0-9]+ s here", capsys.readouterr().out)


UNSHOWN = {
    "a secret of each task": ('f"<think>{environment.door(way)}', 'f"<think>{room(environment)}', True),
    "a word of the player's own": (
        'f"<think>{environment.door(way)}',
        'f"<think>I guess {environment.door(way)}',
        False,
    ),
}


@pytest.mark.parametrize("kind", UNSHOWN)
def test_words_of_the_player_that_no_prompt_shows_are_named(maze: Path, kind: str) -> None:
    from alignopsd_trl.own_task import check_task

    sound, other, found = UNSHOWN[kind]
    secret = "\n\ndef room(environment):\n    return f'room{hash(str(environment.towards))}'\n"
    player = maze / "maze_player.py"
    player.write_text(player.read_text().replace(sound, other) + secret)
    report = check_task("maze", episodes=6)
    assert any("not in their prompt" in str(one) for one in report.findings) is found and not report.ruined


@pytest.mark.parametrize("thought", ["{'wooden' if 'wooden' in skill else 'iron'}", "a door"])
def test_a_player_that_does_not_name_what_the_skill_says_is_named(
    maze: Path, thought: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, player = maze / "maze_skills.json", maze / "maze_player.py"
    bank.write_text(bank.read_text().replace("The iron doors", "The wooden doors", 1))
    player.write_text(player.read_text().replace("{environment.door(way)}", thought))
    main(["check", "maze", "--episodes", "8"])
    assert ("name a word that the skill alone says" in capsys.readouterr().out) is (thought == "a door")


@pytest.mark.parametrize("fault", mostly_full(FAULTS, quick=6))
def test_planted_faults_are_found(maze: Path, fault: str) -> None:
    from alignopsd_trl.own_task import check_task

    name, sound, faulty, word = FAULTS[fault]
    text = (maze / name).read_text()
    assert sound in text
    (maze / name).write_text(text.replace(sound, faulty))
    report = check_task("maze", episodes=6, time_limit=1.0)
    assert any(word in str(one) for one in report.findings), report.told()


def _played(*rewards: float, finish: float = 0.0, won: bool | None = None) -> Any:
    """An episode with these rewards, turn by turn."""
    from alignopsd_trl.environments.base import Step, View
    from alignopsd_trl.own_task.playing import ENDED, PlayedEpisode, PlayedTurn

    view = View("", "", (), (), 0, None)
    turns = [PlayedTurn(view, "", "", True, Step("", reward=reward), 0.0) for reward in rewards]
    return PlayedEpisode({"task_id": "t"}, False, turns=turns, reward=sum(rewards) + finish, won=won, stop=ENDED)


PAID_TWICE = {
    "by the last turn": [_played(1, 0, 1, 2), _played(1, 1, 1, 3), _played(0, 1, 1, 2), _played(1, 1, 0, 1, 3)],
    "by finish": [_played(1, 1, finish=2), _played(1, 1, 1, finish=3), _played(1, 0, 1, finish=2), _played(0, 0)] * 2,
    "the last turn's own with it": [_played(1, 1, 3), _played(1, 1, 1, 3), _played(1, 1, 2), _played(1, 0, 1, 1, 4)],
    "its own, and a sum that counts it": [_played(1, 1, 4), _played(1, 1, 2), _played(1, 1, 1, 5), _played(0, 1, 1, 4)],
}
PAID_ONCE = {
    "at the end": [_played(0, 0, 1), _played(0, 0, 0), _played(0, 0, 1), _played(0, 1)],
    "two turns of 1": [_played(1, 1), _played(1, 1), _played(0, 1, 1), _played(1, 0, 1)],
    "a point each": [_played(1, 1), _played(1, 1, 1), _played(1, 0, 1, 1), _played(1, 1, 1, 1)],
    "halves and a bonus of 1": [_played(0.5, 0.5, 1), _played(0.5, 0.5, 1), _played(0.5, 0, 0.5, 1), _played(0.5, 0)],
    "a bonus whatever came before": [_played(1, 1, 3), _played(1, 1, 1, 3), _played(1, 1, 1, 1, 3), _played(1, 1, 3)],
    "a bonus of 3 for two or three": [_played(1, 1, 3), _played(1, 1, 1, 3), _played(1, 1, 3), _played(1, 0, 1, 1, 3)],
    "once by chance": [_played(1, 1, 2), _played(1, 2, 0), _played(2, 2, 1), _played(1, 1, 1, 0), _played(2, 1, 3)],
}


@pytest.mark.parametrize("name", [*PAID_TWICE, *PAID_ONCE])
def test_sums_that_are_paid_again_are_told_from_rewards(name: str) -> None:
    from alignopsd_trl.own_task.outcomes import paid_twice

    found = list(paid_twice({**PAID_TWICE, **PAID_ONCE}[name]))
    assert [one.ruins for one in found] == [False] * (name in PAID_TWICE), found


def _match(rates: dict[str, float], rows: int = 1000, first: int = 16) -> dict[str, Any]:
    """Players that win so often, as long as they are let play."""
    from alignopsd_trl.own_task import contest

    draw = random.Random(0)

    def play(who: str, some: Any) -> list[Any]:
        won = [draw.random() < rates[who] for _ in some]
        return [_played(float(one), won=one) for one in won]

    return contest.play_on(play, list(rates), range(rows), first)


@pytest.mark.parametrize(
    ("at_random", "scripted", "fewest", "most", "word"),
    [
        (0.16, 0.74, 16, 32, ""),
        (0.16, 0.4, 32, 256, ""),
        (0.16, 0.16, 512, 512, "can't be told"),
        (0.74, 0.16, 16, 64, "below"),
    ],
)
def test_players_go_on_until_their_difference_is_known(
    at_random: float, scripted: float, fewest: int, most: int, word: str
) -> None:
    from alignopsd_trl.own_task import contest

    played = _match({contest.RANDOM: at_random, contest.PLAYER: scripted}, rows=contest.MOST)
    assert fewest <= len(played[contest.PLAYER]) == len(played[contest.RANDOM]) <= most
    assert [word in one.text for one in contest.findings(played)] == [True] * bool(word)


def test_a_difference_that_time_leaves_unknown_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from alignopsd_trl.own_task import contest

    monkeypatch.setattr(contest, "SECONDS", 0.0)
    played = _match({contest.RANDOM: 0.3, contest.PLAYER: 0.35})
    (said,) = contest.findings(played)
    assert len(played[contest.PLAYER]) == 16 and "can't be told" in said.text and "--episodes 64" in said.text


def test_a_player_that_never_wins_is_wrong() -> None:
    from alignopsd_trl.own_task import contest

    played = _match({contest.RANDOM: 0.1, contest.PLAYER: 0.0}, first=4)
    assert [one.ruins for one in contest.findings(played)][0]


@pytest.mark.parametrize("fault", ["", "siblings open", "leftovers"])
def test_a_recipe_looks_at_its_task_before_it_starts(
    maze: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.launch.recipe import main as recipe

    if fault:
        name, sound, faulty, word = FAULTS[fault]
        (maze / name).write_text((maze / name).read_text().replace(sound, faulty))
    preset = {**runpy.run_path("train.py")["PRESET"], "model_name_or_path": "tiny"}
    if not fault:
        recipe("maze", ["--plan"], preset=preset)
        assert "maze" in capsys.readouterr().out
        return
    with pytest.raises(ValueError, match=f"{word}.*alignopsd check says more"):
        recipe("maze", ["--plan"], preset=preset)


def test_code_that_can_not_be_read_is_told_without_a_traceback(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (maze / "maze.py").write_text((maze / "maze.py").read_text().replace("def suite(", "def suite(("))
    with pytest.raises(SystemExit) as ended:
        main(["check", "maze"])
    assert ended.value.code == 2
    assert "importing 'maze' failed with SyntaxError" in capsys.readouterr().err


def test_check_says_it_in_json_and_by_its_status(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (maze / "maze.py").write_text((maze / "maze.py").read_text().replace("done=won", "done=False"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["check", "maze", "--episodes", "4", "--json"])
    assert ended.value.code == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {"about", "text", "ruins"} == set(found[0])


ANSWERS = {
    "a page": ("<html>It works!</html>", "no chat completion"),
    "a list": ("[]", "no chat completion"),
    "no choice": ('{"choices": []}', "no chat completion"),
    "a number": ('{"choices": [{"message": {"content": 5}}]}', "no chat completion"),
    "no action": ('{"choices": [{"message": {"content": "I would rather not."}}]}', "valid action"),
    "an error": ("out of memory", "answered 500: out of memory"),
}


@pytest.fixture
def endpoint() -> Iterator[type[BaseHTTPRequestHandler]]:
    """A server on this machine that answers every request with its ``answer``."""

    class Handler(BaseHTTPRequestHandler):
        answer, address, status = "", "", 200
        asked: list[dict] = []

        def do_POST(self) -> None:
            self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(self.status)
            self.end_headers()
            self.wfile.write(self.answer.encode())

        def log_message(self, *given: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.address = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_endpoint_that_answers_nonsense_ends_in_a_sentence(
    maze: Path, endpoint: type[BaseHTTPRequestHandler], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answer, word = ANSWERS[answer]
    endpoint.status = 500 if answer == "an error" else 200
    _fails(["demonstrate", "maze", "--endpoint", endpoint.address, "--episodes", "2"], word, capsys=capsys)
    assert not (maze / "demonstrations.jsonl").exists()


def test_an_endpoint_that_plays_leaves_demonstrations(
    maze: Path, endpoint: type[BaseHTTPRequestHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = {"content": "<action>go north</action>", "reasoning_content": "North is new."}
    endpoint.answer = json.dumps({"choices": [{"message": message}]})
    flags = ["--endpoint", endpoint.address, "--endpoint_model", "teacher", "--temperature", "0.5"]
    main(["demonstrate", "maze", *flags, "--episodes", "3", "--output", "asked.jsonl"])
    rows = _rows(maze / "asked.jsonl")
    assert {row["task_id"] for row in rows} and len(rows) == len(endpoint.asked)
    assert rows[0]["completion"][0]["content"] == "<think>\nNorth is new.\n</think>\n<action>go north</action>"
    assert (endpoint.asked[0]["model"], endpoint.asked[0]["temperature"]) == ("teacher", 0.5)
    prompts = [row["prompt"] for row in rows]
    assert all(asked["messages"] in prompts for asked in endpoint.asked)  # episodes ask side by side, in any order


@pytest.mark.parametrize("thinking", ["keep", "drop"])
def test_a_warm_start_learns_dialogues_as_the_policy_reads_them(
    maze: Path, thinking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.own_task.dialogues import encoded
    from alignopsd_trl.own_task.task import find_task
    from alignopsd_trl.own_task.tiny import tiny_tokenizer

    recipe = (maze / "train.py").read_text()
    options = f'**LAPTOP, "history": "conversation", "past_thinking": {thinking!r},'
    (maze / "train.py").write_text(recipe.replace("**LAPTOP,", options))
    main(["demonstrate", "maze", "--episodes", "8"])
    rows, preset = _rows(maze / "demonstrations.jsonl"), find_task("maze").preset
    assert f"{sum(len(row['completion']) + 1 for row in rows) // 2} turns of 8 episodes" in capsys.readouterr().out
    assert len(rows) == 8 and {row["skilled"] for row in rows} == {True, False}
    row = max(rows, key=lambda one: len(one["completion"]))
    said = [one["content"] for one in row["completion"] if one["role"] == "assistant"]
    assert [one["role"] for one in row["completion"]] == ["assistant", *["user", "assistant"] * (len(said) - 1)]
    tokenizer = tiny_tokenizer([one["content"] for row in rows for one in (*row["prompt"], *row["completion"])])
    parts = list(encoded(row, tokenizer, preset))
    assert len(parts) == (1 if thinking == "keep" else len(said))
    learnt = [
        token for one in parts for token, mark in zip(one["input_ids"], one["completion_mask"], strict=True) if mark
    ]
    assert tokenizer.decode(learnt) == "".join(one + tokenizer.eos_token for one in said)
    whole = tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
    if thinking == "keep":
        assert whole.startswith(tokenizer.decode(parts[0]["input_ids"]))
    main(["warm_start", "maze", "--max_steps", "2", "--tasks", "2"])
    assert "2 updates: held-out loss" in capsys.readouterr().out


def test_dialogues_that_cannot_be_demonstrated_are_refused(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = (maze / "train.py").read_text()
    (maze / "train.py").write_text(recipe.replace("**LAPTOP,", '**LAPTOP, "history": "conversation",'))
    flags = ["--privileged", "next_observation"]
    _fails(["demonstrate", "maze", *flags], "'conversation'", "leave history out", capsys=capsys)


def _changed(file: Path, *pairs: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text)


def test_calls_in_a_chat_templates_own_format_are_demonstrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "native_digits", "--tools", "--model", "tiny"])
    made = "ToolEnvironment(NativeDigits, "
    _changed(tmp_path / "native_digits" / "native_digits.py", (made, f'{made}format="native", '))
    main(["check", "native_digits", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    main(["demonstrate", "native_digits", "--episodes", "4"])
    row = _rows(tmp_path / "demonstrations.jsonl")[-1]
    (said,) = row["completion"]
    (call,) = said["tool_calls"]
    assert call["function"]["name"] == row["tools"][0]["function"]["name"] == "guess"
    assert isinstance(call["function"]["arguments"]["number"], int) and "between" in said["reasoning_content"]
    shown = chat_tokenizer().apply_chat_template([*row["prompt"], said], tools=row["tools"], tokenize=False)
    assert '<tool_call>\n{"name": "guess"' in shown
    _fails(["warm_start", "native_digits"], "--model tiny", "tools", capsys=capsys)


AGENT = (
    'completion = await client.chat(messages=messages, tools=[{"type": "function", "function": TOOL}])',
    """said = completion["choices"][0]["message"]
        (call,) = said.get("tool_calls") or ({"function": {"arguments": "{}"}},)
        guess = json.loads(call["function"]["arguments"]).get("number", -1)""",
    'messages += [said, {"role": "tool", "tool_call_id": call.get("id"), "content": no}]',
)
"""The written agent with native calls."""


@pytest.fixture
def guessing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Path:
    """A task of an agent, beside the present folder's other files."""
    monkeypatch.chdir(tmp_path)
    main(["new", "guessing", "--agent", "--model", "tiny"])
    return tmp_path / "guessing"


def _with_calls(file: Path) -> None:
    text = file.read_text()
    begin, end = (text.index(part) for part in ("        said = ", "        if guess == row"))
    parameters = '{"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}'
    tool = f'TOOL = {{"name": "guess", "description": "Guess.", "parameters": {parameters}}}\n\n\nasync def agent'
    file.write_text(f"{text[:begin]}        {AGENT[1]}\n{text[end:]}")
    _changed(
        file,
        ("completion = await client.chat(messages=messages)", AGENT[0]),
        ('messages += [{"role": "assistant", "content": said}, {"role": "user", "content": no}]', AGENT[2]),
        ("async def agent", tool),
        ("import re\n", "import json\n"),
        ('format="text", ', ""),
    )


def test_a_task_of_an_agent_is_written_played_and_demonstrated(
    guessing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "guessing", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    main(["demonstrate", "guessing", "--episodes", "4"])
    rows = _rows(guessing.parent / "demonstrations.jsonl")
    later = next(row for row in rows if row["turn"] == 1 and row["skilled"])
    assert [one["role"] for one in later["prompt"]] == ["user", "assistant", "user"]
    assert later["prompt"][-1]["content"].endswith("Ask for the middle of what is left.")
    assert later["prompt"][1]["content"].isdecimal() and "<think>" in later["completion"][0]["content"]


def test_an_agents_native_calls_are_played_by_an_endpoint(
    guessing: Path, endpoint: type[BaseHTTPRequestHandler], capsys: pytest.CaptureFixture[str]
) -> None:
    _with_calls(guessing / "guessing.py")
    _changed(guessing / "guessing_player.py", ("\\n{number}", "\\n<action>guess(number={number})</action>"))
    main(["check", "guessing", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    called = {"name": "guess", "arguments": '{"number": 3}'}
    endpoint.answer = json.dumps({"choices": [{"message": {"content": None, "tool_calls": [{"function": called}]}}]})
    main(["demonstrate", "guessing", "--endpoint", endpoint.address, "--episodes", "2"])
    asked = max(endpoint.asked, key=lambda one: len(one["messages"]))
    (call,), result = asked["messages"][-2]["tool_calls"], asked["messages"][-1]
    assert call["id"] == result["tool_call_id"] and json.loads(call["function"]["arguments"]) == {"number": 3}
    row = _rows(guessing.parent / "demonstrations.jsonl")[0]
    assert row["completion"][0]["tool_calls"][0]["function"] == {"name": "guess", "arguments": {"number": 3}}
    assert row["tools"] == asked["tools"]


@pytest.mark.full
def test_the_written_agent_trains_in_a_folder_of_its_own(guessing: Path) -> None:
    def run(*argv: str) -> str:
        done = subprocess.run([sys.executable, *argv], cwd=guessing, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alignopsd = ("-m", "alignopsd_trl.cli")
    assert "nothing found" in run(*alignopsd, "check", "guessing")
    run(*alignopsd, "demonstrate", "guessing", "--episodes", "16")
    run(*alignopsd, "warm_start", "guessing", "--max_steps", "4", "--tasks", "0")
    said = run("train.py", "--rounds", "1", "--panel_limit", "4", "--tasks_per_round", "2", "--num_generations", "2")
    assert "success" in said


def test_held_out_turns_are_of_other_tasks() -> None:
    from alignopsd_trl.own_task.supervised import held_out

    rows = [{"task_id": f"t{number // 3}", "turn": number % 3} for number in range(90)]
    learnt, held = held_out(rows, 128)
    assert not {one["task_id"] for one in learnt} & {one["task_id"] for one in held}
    assert (len(learnt), len(held)) == (81, 9)
    assert held_out(rows[:3], 128) == (rows[:3], rows[:3]) and len(held_out(rows, 5)[1]) == 5


def test_the_learning_rate_rises_and_falls_over_the_budget() -> None:
    from alignopsd_trl.own_task.supervised import WARM_UP, rate

    rates = [rate(share) for share in (0.0, WARM_UP / 2, WARM_UP, 0.5, 1.0, 1.1)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0, 0.0], abs=0.01)


def test_batches_hold_rows_of_similar_length_and_the_shortest_come_regularly() -> None:
    from alignopsd_trl.own_task.supervised import WINDOW, SimilarLengths

    torch.manual_seed(0)
    order = list(SimilarLengths(list(range(202)), 4, 4 * WINDOW))
    assert sorted(order) == list(range(202))
    batches = [order[place : place + 4] for place in range(0, 200, 4)]
    assert sum(max(one) - min(one) for one in batches) / 50 < 60  # of rows by chance 121
    windows = [sum(batches[place : place + WINDOW], []) for place in range(0, 48, WINDOW)]
    assert sum(min(one) < 40 for one in windows) > 10


def test_each_kind_of_turns_comes_within_a_few_updates() -> None:
    from alignopsd_trl.own_task.supervised import WINDOW, SimilarLengths

    torch.manual_seed(0)
    window = 8 * WINDOW
    kinds = [number % 20 == 0 for number in range(640)]  # the rare ones are the shortest
    order = list(SimilarLengths([100 - 90 * kind + number % 7 for number, kind in enumerate(kinds)], 8, window, kinds))
    assert sorted(order) == list(range(640)) and order[:32] != sorted(order)[:32]
    again = iter(SimilarLengths([100 - 90 * kind + number % 7 for number, kind in enumerate(kinds)], 8, window, kinds))
    assert order == [(row, torch.rand(1))[0] for row in again], "others draw too, as evaluations by the clock"
    assert {sum(kinds[row] for row in order[place : place + window]) for place in range(0, 640, window)} <= {1, 2}


@pytest.mark.parametrize("adapters", [False, True])
def test_the_loss_is_that_of_responses_with_a_share_of_prompts(adapters: bool) -> None:
    from peft import LoraConfig, get_peft_model

    from alignopsd_trl.own_task.supervised import PROMPT_WEIGHT, loss_of
    from alignopsd_trl.own_task.tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer(["go left , go right"])
    model: Any = tiny_model(tokenizer, 1, 0).eval()
    if adapters:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    ids = torch.tensor([[5, 6, 7, 8, 9], [7, 5, 6, 0, 0]])
    mask, labels = torch.tensor([[1] * 5, [1] * 3 + [0] * 2]), torch.full((2, 5), -100)
    labels[0, 3:], labels[1, 2] = ids[0, 3:], ids[1, 2]
    shown = ids.masked_fill((labels != -100) | (mask == 0), -100)
    response, prompt = (model(input_ids=ids, attention_mask=mask, labels=one).loss for one in (labels, shown))
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    torch.testing.assert_close(loss_of(model, inputs, False), response)
    torch.testing.assert_close(loss_of(model, inputs, True), response + PROMPT_WEIGHT * prompt)


def test_a_warm_start_interrupted_before_its_first_evaluation_leaves_nothing(
    maze: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alignopsd_trl.own_task import supervised
    from alignopsd_trl.own_task.first_policy import first_policy

    def interrupted(model: Any, tokenizer: Any, rows: Any, folder: Path, *more: Any) -> None:
        (folder / "model.safetensors").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(supervised, "train", interrupted)
    before = sorted(maze.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        first_policy("maze", "made/policy", [], episodes=2)
    left = {path.name for path in maze.rglob("*") if path not in before} - {"made"}
    assert not [name for name in left if not name.endswith((".pyc", "__pycache__"))]


def test_a_recipes_first_policy_learns_from_its_own_environment_in_its_own_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alignopsd_trl.own_task import supervised
    from alignopsd_trl.own_task.first_policy import first_policy

    recipe, learnt = runpy.run_path(str(Path(__file__).parents[1] / "recipes" / "hops_smollm.py")), []

    def seen(model: Any, tokenizer: Any, rows: Any, *more: Any) -> None:
        learnt.extend(rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(supervised, "train", seen)
    config, preset, player = replace(recipe["START"], model="tiny"), recipe["PRESET"], recipe["READER"]
    with pytest.raises(KeyboardInterrupt):
        first_policy("searchqa_hops", tmp_path / "p", [], config=config, episodes=4, player=player, preset=preset)
    assert len(learnt) == 4 and all(sum(row["completion_mask"]) > 50 for row in learnt)
    shown = [row["prompt"][0]["content"] for row in learnt]
    assert all(text.startswith("Guidance") == row["skilled"] for text, row in zip(shown, learnt, strict=True))
    assert "" in shown and any(shown)


def _demonstrated(maze: Path, turns: int) -> None:
    said = {"role": "assistant", "content": "<action>go north</action>"}
    row = {"prompt": [{"role": "user", "content": "Go ."}], "completion": [said]}
    lines = [json.dumps({**row, "task_id": f"t{number}"}) + "\n" for number in range(turns)]
    (maze / "demonstrations.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(("flags", "kept"), [([], 2), (["--max_steps", "9"], 3)])
def test_an_interrupted_warm_start_keeps_the_best_so_far(
    maze: Path,
    flags: list[str],
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from transformers import AutoModelForCausalLM

    from alignopsd_trl.own_task import supervised

    weights = {}

    def on_step_end(self: Any, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        weights[state.global_step] = model.model.norm.weight.detach().clone()
        control.should_evaluate = state.global_step == 2 and self.minutes is not None
        if state.global_step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(supervised.Budget, "on_step_end", on_step_end)
    _demonstrated(maze, 20)
    with pytest.raises(SystemExit) as end:
        main(["warm_start", "maze", *flags])
    told = capsys.readouterr().err
    assert end.value.code == 130
    assert told.strip().splitlines()[-1] == (
        f"alignopsd warm_start: stopped by Ctrl-C; policy holds the best so far, after {kept} updates"
    )
    saved = AutoModelForCausalLM.from_pretrained(maze / "policy").model.norm.weight
    assert torch.equal(saved, weights[kept]) and not torch.equal(weights[2], weights[3])
    assert (maze / "policy" / "tokenizer.json").is_file()


def test_an_update_in_several_forwards_is_that_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alignopsd_trl.own_task import supervised
    from alignopsd_trl.own_task.options import WarmStartConfig
    from alignopsd_trl.own_task.tiny import tiny_model, tiny_tokenizer

    tokenizer, draw = tiny_tokenizer(["go left , go right"]), random.Random(0)
    told = [{"input_ids": [5, 6, 7] * draw.randint(1, 9) + [8, 9]} for _ in range(17)]
    rows = [one | {"completion_mask": [0] * (len(one["input_ids"]) - 2) + [1, 1]} for one in told]
    made, forwards = [], []
    for forward in (16, 4):
        monkeypatch.setattr(supervised, "FORWARD", forward)
        monkeypatch.setattr(supervised, "bfloat16_pays", lambda width: False)
        config = WarmStartConfig(model="smollm2", batch_size=16, max_steps=2, learning_rate=1e-2)
        model: Any = tiny_model(tokenizer, 1, 0)
        seen = [0]
        model.get_decoder().register_forward_hook(lambda *_, seen=seen: seen.__setitem__(0, seen[0] + 1))
        trainer, _ = supervised.train(model, tokenizer, rows, tmp_path, config)
        made.append(torch.cat([one.detach().flatten() for one in trainer.model.parameters()]))
        forwards.append(seen[0])
    assert forwards[0] < forwards[1]
    start = torch.cat([one.detach().flatten() for one in tiny_model(tokenizer, 1, 0).parameters()])
    assert (made[0] - made[1]).norm() < 0.01 * (made[0] - start).norm()


@pytest.mark.parametrize(
    ("flags", "updates"), [(["--max_steps", "3"], "[123]"), (["--minutes", "0.02"], r"\d+")], ids=["updates", "minutes"]
)
def test_a_warm_start_says_how_far_it_is(
    maze: Path, flags: list[str], updates: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.own_task import supervised

    monkeypatch.setattr(supervised, "SAID_EVERY", 0.0)
    _demonstrated(maze, 20)
    main(["warm_start", "maze", *flags, "--tasks", "0"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("tiny learns from ")
    assert len([one for one in said if re.fullmatch(rf"{updates} updates: loss \d\.\d{{3}}, \d+:\d\d left", one)]) > 1
    (*_, last) = [one for one in said if "held-out loss" in one]
    assert (
        re.search(r"100% of responses are the player's; \d:\d\d gone \(\d+ CPU s\), 0:00 left$", last)
        or "look: " in said[-1]
    )


class _Won:
    """Plays that are won more and more often."""

    def __init__(self, *won: float):
        self.won, self.played = iter(won), 0

    def __call__(self, model: Any, tokenizer: Any) -> Any:
        self.played += 1
        return SimpleNamespace(success=SimpleNamespace(mean=next(self.won)), episodes=32, invalid_actions=0.0)


def test_a_warm_start_ends_when_enough_is_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.own_task import supervised
    from alignopsd_trl.own_task.options import WarmStartConfig
    from alignopsd_trl.own_task.warm_start import warm_start

    for name in ("EVERY", "REST", "PLAYABLE", "PLAY_REST"):
        monkeypatch.setattr(supervised, name, 0.0)
    rows, play = _toy("few", turns=20), _Won(0.0, 10.0, 40.0)
    made = warm_start(rows, tmp_path / "policy", WarmStartConfig(minutes=5, until_success=0.3), play=play)
    assert (made.updates, play.played) == (3, 3)
    assert "played without the skill: 40% of 32 won, 0.0% invalid actions" in capsys.readouterr().out
    with pytest.raises(ValueError, match="does not say who won"):
        warm_start(rows, tmp_path / "other", WarmStartConfig(max_steps=1, until_success=0.3), play=_Won(float("nan")))
    assert [file.name for file in tmp_path.iterdir()] == ["policy"]


def _turn(right: str, response: str = "", prompt: str = "", skilled: bool = False) -> Any:
    """A held-out turn whose words are its tokens; ``right`` has a `+` for each that is predicted."""
    from alignopsd_trl.own_task.agreement import Turn

    words = response.split() or ["go"] * len(right)
    return Turn(prompt.split(), words, [one == "+" for one in right], [0.5] * len(right), skilled)  # type: ignore


WORDS = SimpleNamespace(decode=" ".join)


def test_agreement_is_told_for_responses_views_and_actions() -> None:
    from alignopsd_trl.own_task.agreement import Agreement

    said = "left </think> <action> left"
    turns = [_turn("++++", said), _turn("-+++", said), _turn("+++-", said), _turn("++++", said, skilled=True)]
    assert Agreement(turns, WORDS).told() == (
        "held-out loss 0.500, 50% of responses are the player's (100% with the skill, 33% without it), of actions "
        "after its thoughts 75%"
    )
    assert "25% of the actions are wrong" in Agreement(turns, WORDS).unfollowed
    assert Agreement([turns[1], turns[3]], WORDS).unfollowed == ""  # all actions are right
    assert Agreement([_turn("-+"), _turn("++")], WORDS).unfollowed == ""  # no thoughts


def test_turns_are_runs_of_tokens_that_count() -> None:
    from alignopsd_trl.own_task.agreement import turns_of

    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]])
    chosen = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]]).bool()
    right = torch.tensor([1, 0, 1, 1, 1]).bool()
    turns = list(turns_of(ids, chosen, torch.arange(5.0), right, [False, True]))
    assert [(one.prompt, one.response, one.losses) for one in turns] == [
        ([1, 2], [3, 4], [0.0, 1.0]),
        ([1, 2, 3, 4, 5], [6], [2.0]),
        ([7], [8, 9], [3.0, 4.0]),
    ]
    assert [(one.agrees, one.skilled) for one in turns] == [(False, False), (True, False), (True, True)]


TROUBLES = {
    "few": [_turn("-+")] * 4,
    "long": [_turn("+" * 79 + "-")] * 4,
    "unskilled by chance": [_turn("+-", "go north"), _turn("++", skilled=True)] * 2,
    "hidden": [_turn("+-", f"go {door}", "three doors") for door in ("amber", "elm", "iron")],
    "by chance": [_turn("+-", f"go {door}", "amber or elm or iron") for door in ("amber", "elm", "iron")],
}


@pytest.mark.parametrize("name", TROUBLES)
def test_causes_of_low_agreement_are_told_apart(name: str) -> None:
    from alignopsd_trl.own_task.agreement import Agreement

    assert _told(Agreement(TROUBLES[name], WORDS).causes(0.3, improving=name == "few")) == {name}


def _told(said: str) -> set[str]:
    words = (
        "turns and still",
        "shorten",
        "without the skill the player",
        "not in the prompt",
        "player chooses by chance",
    )
    return {name for name, word in zip(TROUBLES, words, strict=True) if word in said}


def _toy(trouble: str, turns: int = 600) -> list[dict]:
    """Demonstrations of choosing one of a few doors; the trouble makes them hard to imitate."""
    draw, rows = random.Random(0), []
    for number in range(turns):
        count = 6 if "by chance" in trouble else 3  # a guess is rarely right
        doors, skilled = draw.sample([f"w{one}" for one in range(40)], count), number % 2 == 1
        good = draw.choice(doors)
        told = trouble in ("few", "long") or trouble == "unskilled by chance" and skilled
        said = {"hidden": draw.choice([f"v{one}" for one in range(40)]), "long": " ".join([good, *doors] * 25)}
        prompt = f"doors {' '.join(doors)} . take {good if told else 'one'} ."
        answer = f"<action>{said.get(trouble, good)}</action>"
        one = {
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": answer}],
        }
        rows.append({**one, "task_id": f"t{number}", "turn": 0, "skilled": skilled and "by chance" in trouble})
    return rows


@pytest.mark.full
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_warm_start_that_fails_says_why(trouble: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from alignopsd_trl.own_task.options import WarmStartConfig
    from alignopsd_trl.own_task.warm_start import warm_start

    steps = {"few": 15, "long": 60}.get(trouble, 250)
    warm_start(_toy(trouble), tmp_path / "policy", WarmStartConfig(max_steps=steps))
    (said,) = re.findall("look: (.*)", capsys.readouterr().out)
    assert _told(said) == {trouble}


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with replacing(tmp_path / "policy") as partial:
        alive, other = tmp_path / partial.name, tmp_path / ".other.host-1.x.partial"
        left = tmp_path / partial.name.replace(f"-{os.getpid()}.", f"-{dead.pid}.")
        left.mkdir()
        other.mkdir()
        with replacing(tmp_path / "policy"):
            assert alive.exists() and other.exists() and not left.exists()


def test_a_poor_policy_is_told_with_a_remedy() -> None:
    from alignopsd_trl.own_task.warm_start import PLAIN, advice

    def result(won: float, invalid: float) -> Any:
        return SimpleNamespace(success=SimpleNamespace(mean=won), invalid_actions=invalid)

    rows = [{"turn": 0, "skilled": number % 2 == 1, "won": number % 8 > 1} for number in range(96)]
    assert advice({PLAIN: result(70.0, 0.01), "with it": result(80.0, 0.0)}, rows) == ""
    said = advice({PLAIN: result(20.0, 0.01), "with it": result(30.0, 0.3)}, rows)
    assert "without the skill it won 20% where its demonstrations won 75%" in said
    assert "with it 30% of its actions are invalid" in said and "with it it won 30%" in said
    assert "--episodes" in said and "--minutes" in said


@pytest.mark.parametrize(
    ("alone", "read", "player", "says"),
    [
        (30, 35, 100, True),  # the skill changes nothing
        (30, 90, 100, False),
        (80, 95, 100, False),  # a good policy has less to gain
        (30, 30, 40, False),  # nor does it help the player
        (30, math.nan, 100, False),  # nobody knows who won
    ],
)
def test_a_policy_that_does_not_read_the_skill_is_told_so(alone: float, read: float, player: int, says: bool) -> None:
    from alignopsd_trl.own_task.warm_start import PLAIN, SKILLED, unread

    rows = [{"turn": 0, "skilled": False, "won": number < 35} for number in range(100)]
    rows += [{"turn": 0, "skilled": True, "won": number < player} for number in range(100)]
    results: Any = {
        name: SimpleNamespace(success=SimpleNamespace(mean=won)) for name, won in ((PLAIN, alone), (SKILLED, read))
    }
    said = unread(results, rows)
    assert bool(said) is says
    if says:
        assert "it won 35% and without 30%" in said and "100% and 35%" in said and "--method grpo" in said
    assert unread({PLAIN: results[PLAIN]}, rows) == ""  # a task without skills
    assert unread(results, rows[:100]) == ""  # no skill was demonstrated


@pytest.mark.slow
def test_a_handful_of_demonstrations_makes_a_policy_that_training_goes_on_from(maze: Path) -> None:
    main(["demonstrate", "maze", "--episodes", "6"])
    main(["warm_start", "maze", "--max_steps", "3", "--tasks", "4"])
    main(
        [
            "warm_start",
            "maze",
            "--model",
            "policy",
            "--use_peft",
            "--max_steps",
            "2",
            "--tasks",
            "0",
            "--output",
            "more",
        ]
    )
    assert not (maze / "more" / "adapter_config.json").exists()
    before, after = (load_file(maze / name / "model.safetensors") for name in ("policy", "more"))
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)
    flags = ["--rounds", "1", "--tasks_per_round", "1", "--num_generations", "2", "--panel_limit", "4"]
    for method in ("grpo", "align_opsd"):
        command = [sys.executable, "train.py", "--method", method, "--output_dir", f"outputs/{method}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert (maze / "outputs" / method / "results.json").is_file()
