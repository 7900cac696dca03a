"""What `alignopsd check` finds in a task."""

from __future__ import annotations

import math
import random
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.own_task import changed, fails
from fakes.sweeps import mostly_full
from fakes.toy import ToyEnvironment

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.launch.recipe import main as recipe
from alignopsd_trl.commands.own_task.check import contest
from alignopsd_trl.commands.own_task.check.outcomes import actions, ends, paid_twice, rewards, told
from alignopsd_trl.commands.own_task.check.starting import cost, faults
from alignopsd_trl.commands.own_task.check.task_check import check_task, success_of
from alignopsd_trl.commands.own_task.check.wording import unshown
from alignopsd_trl.commands.own_task.playing import CUT, Answer, play
from alignopsd_trl.commands.own_task.task import find_task
from alignopsd_trl.environments import PlainEnvironment, ShortPrompt
from alignopsd_trl.environments.base import Ending, Opening, Step
from alignopsd_trl.rollout.episode import Episode, no_skills
from alignopsd_trl.turns import StopReason, Trajectory, Turn


def test_nothing_is_found_in_the_written_task(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "maze", "--episodes", "8"])
    said = capsys.readouterr().out
    assert "nothing found" in said and "[user]\nLeave the maze of the " in said
    taught = re.search(r"teacher's prompt has in addition:\n(.*?)\n\nand the answer:", said, re.DOTALL)
    assert taught and "sign" in taught[1] and "Leave the maze" not in taught[1]
    assert re.search(r"random play: .* on average\n", said)
    apart = re.search(r"scripted player: .* on average \((\S+) with the skill, (\S+) without it\)", said)
    assert apart and float(apart[1]) >= float(apart[2])


OF_THE_TASK = {
    "siblings": (
        "self.room, self.exit, self.builders = tuple(start)",
        "self.room, self.exit, self.builders = random.SystemRandom().choice(list(self.towards))",
        "differently",
    ),
    "siblings open": (
        "return Opening(self._shown()",
        "return Opening(str(random.SystemRandom().random())",
        "differently",
    ),
    "leftovers": ("self.visits = {self.room: 1}", "self.visits = getattr(self, 'visits', {})", "otherwise"),
    "replay": ("valid = action in self._actions()", "valid = random.SystemRandom().random() < 0.5", "the same actions"),
    "type of an observation": (
        "        return Step(\n            seen",
        "        return Step(\n            None",
        "observation",
    ),
    "type of a reward": ("reward=float(won)", "reward=str(won)", "reward"),
    "large rewards": ("reward=float(won)", "reward=1000.0 * won", "1000"),
    "rewards that never differ": ("reward=float(won)", "reward=0.0", "nothing is learnt"),
    "rewards upside down": ("reward=float(won)", "reward=1.0 - won", "teach to lose"),
    "an episode that never ends": ("done=won", "done=False", "Step.done"),
    "an episode that ends at once": ("done=won", "done=True", "first turn"),
    "a hang": ("        valid = action", "        import time; time.sleep(8)\n        valid = action", "--time_limit"),
    "an error": ("valid = action in", "valid = 1 / 0 or action in", "ZeroDivisionError"),
    "an unknown action that fails": (
        "valid = action in self._actions()",
        "valid = action.split()[1] in MOVES and action in self._actions()",
        "any string",
    ),
    "an unknown action that counts": ("valid=valid", "valid=True", "counts as valid"),
    "an unknown action that wins": (
        "won = self.room == self.exit",
        "won = not valid or self.room == self.exit",
        "give nothing for it",
    ),
    "won by everybody": ("done=won, won=won", "done=won, won=True", "random play won all"),
    "won by nobody": ("done=won, won=won", "done=won, won=False", "won none"),
    "a sum that is paid again": (
        "reward=float(won), done=won",
        "reward=0.5 * (sum(self.visits.values()) - 2 if won else valid), done=won",
        "paid twice",
    ),
    "an offer that is refused": ("valid=valid", "valid=False", "offered and refused"),
    "a skill for nobody": ("the maze of the {builders}", "the maze of the masons", "weavers"),
    "tasks that are one": ("maze(first + number)", "maze(first)", "tasks are one"),
    "a panel that is trained on": ("10_000", "0", "trained on"),
    "names that are one": ("/{split}/{number}", "/{split}", "task_id"),
}
FAULTS = {name: ("maze.py", *fault) for name, fault in OF_THE_TASK.items()} | {
    "a bank of something else": ("maze_skills.json", '"environment": "maze"', '"environment": "house"', "house"),
    "a damaged bank": ("maze_skills.json", '"schema"', "schema", "JSON"),
    "no room for a prompt": ("train.py", '"max_prompt_length": 512', '"max_prompt_length": 60', "max_prompt_length=60"),
    "no room for a response": (
        "train.py",
        '"max_completion_length": 64',
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
    "a player that does not answer": ("maze_player.py", "<action>", "<act>", "answer as the prompt asks"),
}
"""Kind of fault -> the file that has it, what is sound there, what is faulty, and a word of the finding."""


@pytest.mark.parametrize("fault", mostly_full(FAULTS, quick=6))
def test_planted_faults_are_found(maze: Path, fault: str) -> None:
    name, sound, faulty, word = FAULTS[fault]
    text = (maze / name).read_text()
    assert sound in text
    (maze / name).write_text(text.replace(sound, faulty))
    report = check_task("maze", episodes=6, time_limit=0.2 if fault == "a hang" else 1.0)
    assert any(word in str(one) for one in report.findings), report.told()


def test_the_seconds_that_a_new_row_takes_are_told(maze: Path) -> None:
    waits = "import time\n\nMADE = []\n\n\ndef make():\n    time.sleep(0.3)\n    MADE.append(1)\n\n\nclass "
    text = (maze / "maze.py").read_text().replace("class ", waits, 1)
    made = "    prepare_row = staticmethod(lambda **row: MADE or make())\n\n    def reset("
    (maze / "maze.py").write_text(text.replace("    def reset(", made, 1))
    task = find_task("maze")
    told = re.search(r", (\d+\.\d) s more for a row that is new$", cost(task, task.rows[0], 10.0)[0])
    assert told and float(told[1]) > 0.1


UNLEARNT = {
    "a text that brings nothing": ("maze_player.py", "draw.choice(told or new)", "draw.choice(new)", "brings nothing"),
    "won by nobody": ("maze.py", "done=won, won=won", "done=won, won=False", "won none of 40"),
}


@pytest.mark.parametrize("fault", UNLEARNT)
def test_what_cannot_be_learnt_is_not_demonstrated(
    maze: Path, fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, sound, faulty, word = UNLEARNT[fault]
    changed(maze / name, (sound, faulty))
    monkeypatch.setattr(contest, "ENOUGH", 16)
    fails(["demonstrate", "maze", "--episodes", "40"], word, capsys=capsys)
    assert not (maze / "demonstrations.jsonl").exists()
    if "text" in fault:
        assert any(word in one.text and one.ruins for one in check_task("maze").findings)
        main(["demonstrate", "maze", "--episodes", "4", "--skilled_share", "0"])  # its form alone


class Numbered(PlainEnvironment):
    prompt, max_turns, request = ShortPrompt(), 2, "Play Lake."

    def reset(self, **row: Any) -> Opening:
        return Opening("[0.1 2 -3e-05]", self.request)

    def step(self, action: str) -> Step:
        return Step("4", valid=False)


class Explained(Numbered):
    request = "You see three numbers. Say their sum."


@pytest.mark.parametrize(("kind", "found"), [(Numbered, True), (Explained, False)])
def test_a_prompt_of_bare_numbers_holds_nothing_to_decide_by(kind: Any, found: bool) -> None:
    rows = [{"task_id": str(number)} for number in range(3)]
    played = play(kind, rows, lambda asked: [Answer("<action>right</action>") for _ in asked])
    texts = [one.text for one in contest.unlearnable(played)]
    assert any("nothing to decide by" in text and "--seen" in text for text in texts) is found
    assert any("nearly all moves of the player are refused" in text for text in texts)
    played[0].trajectory.turns.clear()  # as of an episode that failed at its reset
    assert any("nearly all moves" in one.text for one in contest.unlearnable(played))


class Doors(PlainEnvironment):
    prompt, max_turns = ShortPrompt(), 2

    def reset(self, door: str, **row: Any) -> Opening:
        self.door = door
        return Opening("Two doors.", "Take the right door.")

    def step(self, action: str) -> Step:
        won = action == self.door
        return Step("", float(won), True, won, float(won))


@pytest.mark.parametrize(("text", "known"), [("Look well.", False), ("Take {}.", True)])
def test_a_text_that_does_not_say_what_the_player_wins_by_is_refused(text: str, known: bool) -> None:
    rows = [{"task_id": str(number), "door": random.Random(number).choice(["iron", "oak"])} for number in range(64)]
    draw = random.Random(0)

    def actor(asked: Any) -> list[Answer]:
        right = [one.environment.door if one.skill else draw.choice(["iron", "oak"]) for one in asked]
        return [Answer(f"<action>{door}</action>") for door in right]

    def told(task: str, key: str, source: Any, row: Any) -> tuple[str, tuple[str, ...]]:
        return text.format(row["door"]), ()

    vars(told)["reads_row"] = True
    played = play(Doors, rows, actor, skills=told)
    said = [one for one in contest.unlearnable(played) if one.ruins]
    assert [("no teacher can" in one.text) for one in said] == [True] * (not known)


def test_play_that_takes_too_long_ends_and_tells_nothing_of_its_end() -> None:
    row = {"task_id": "toy/0", "target": "nine", "dynamics_seed": 0}
    played = play(ToyEnvironment, [row] * 2, lambda asked: [Answer("<action>left</action>") for _ in asked], seconds=0)
    assert [(one.trajectory.message, len(one.trajectory.turns)) for one in played] == [(CUT, 1)] * 2
    assert not list(contest.unlearnable(played)) and not list(ends(played, 9))


@pytest.mark.full
def test_no_command_leaves_an_environment_open_or_makes_more_than_may_exist(
    maze: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live, seen = set[int](), list[int]()
    game: Any = find_task("maze").suite.factory

    def made(self: Any) -> None:
        live.add(id(self))
        seen.append(len(live))

    monkeypatch.setattr(game, "most_alive", 1)
    monkeypatch.setattr(game, "__init__", made)
    monkeypatch.setattr(game, "close", lambda self: live.remove(id(self)))
    main(["check", "maze", "--episodes", "8"])
    main(["demonstrate", "maze", "--episodes", "8"])
    recipe("maze", ["--plan"], preset={**runpy.run_path("train.py")["PRESET"], "model_name_or_path": "tiny"})
    assert "at most 1 at once" in capsys.readouterr().out
    assert not live and max(seen) == 1


@pytest.mark.parametrize("fault", ["", "siblings open", "leftovers"])
def test_a_recipe_looks_at_its_task_before_it_starts(
    maze: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize(
    ("sound", "faulty", "word"),
    [
        ("def suite(", "def suite((", "importing 'maze' failed with SyntaxError"),
        (
            '{"doors": doors,',
            '{"card": [7, "hearts"], "doors": doors,',
            "rows('train') of 'maze' make no dataset",
        ),  # of columns of one type
        ('{"doors": doors,', '{"seed": 7, "doors": doors,', "'seed', which reset() gets from the trainer"),
    ],
)
def test_code_that_fails_is_told_without_a_traceback(
    maze: Path, sound: str, faulty: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(maze / "maze.py", (sound, faulty))
    fails(["check", "maze"], word, capsys=capsys)


def test_check_says_it_by_its_status(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (maze / "maze.py").write_text((maze / "maze.py").read_text().replace("done=won", "done=False"))
    with pytest.raises(SystemExit) as ended:
        main(["check", "maze", "--episodes", "4"])
    assert ended.value.code == 1 and "Step.done" in capsys.readouterr().out


def test_a_check_shows_a_demonstrated_turn_and_what_its_parts_cost(
    maze: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check_task("maze", episodes=4)
    tokens = report.tokens
    assert report.answer.startswith("<think>") and "[user]" in report.prompt
    assert all(tokens[name] for name in ("system and marks", "task", "skill", "observation", "answer"))
    assert tokens["options"] == tokens["other lines"] == 0, "the short prompt has neither"
    main(["check", "maze", "--episodes", "4"])
    assert f", observation {tokens['observation']}, answer" in capsys.readouterr().out


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
    sound, other, found = UNSHOWN[kind]
    secret = "\n\ndef room(environment):\n    return f'room{abs(hash(tuple(environment.towards.items())))}'\n"
    player = maze / "maze_player.py"
    player.write_text(player.read_text().replace(sound, other) + secret)
    report = check_task("maze", episodes=6)
    assert any("not in their prompt" in str(one) for one in report.findings) is found and not report.ruined


def test_of_two_episodes_nobody_knows_which_words_belong_to_one() -> None:
    episodes = play(ToyEnvironment, [{"task_id": f"toy/{one}", "target": "three"} for one in range(4)], tries)
    renderer: Any = SimpleNamespace(show=lambda view, skill: "a prompt")
    for count in (1, 2, 4):
        assert not list(unshown(renderer, [one.trajectory for one in episodes[:count]])), count


def tries(asked: Any) -> list[Answer]:
    return [Answer("<think>I try</think> left", "left") for _ in asked]


SEEN = "{environment.door(way)}"
ALONE, OTHERWISE = "name a word that the skill alone says", "'told' is in"


@pytest.mark.parametrize(
    ("thought", "word", "found"),
    [
        ("{'wooden' if 'wooden' in skill else 'iron'}", ALONE, False),
        ("a door", ALONE, True),
        (f"{{'told' if skill else 'seen'}} {SEEN}", OTHERWISE, True),
        (f"{{'seen' if skill else 'seen'}} {SEEN}", OTHERWISE, False),
    ],
)
def test_a_player_that_does_not_name_what_the_skill_says_or_thinks_otherwise_without_it_is_named(
    maze: Path, thought: str, word: str, found: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, player = maze / "maze_skills.json", maze / "maze_player.py"
    if word == ALONE:
        bank.write_text(bank.read_text().replace("The iron doors", "The wooden doors", 1))
    player.write_text(player.read_text().replace(SEEN, thought))
    main(["check", "maze", "--episodes", "8"])
    assert (word in capsys.readouterr().out) is found


def _played(*rewards: float, finish: float = 0.0, won: bool | None = None) -> Any:
    """An episode with these rewards, turn by turn."""
    episode = Episode(Trajectory({"task_id": "t"}, "t", "0"))
    for number, reward in enumerate(rewards):
        done = number + 1 == len(rewards)
        episode.advance(
            Turn(number, "", [], [], action_valid=True), Step("", reward=reward, done=done, won=won), len(rewards)
        )
    episode.end(Ending(reward=finish))
    return episode


PAID_TWICE = {
    "by the last turn": [_played(1, 0, 1, 2), _played(1, 1, 1, 3), _played(0, 1, 1, 2), _played(1, 1, 0, 1, 3)],
    "by finish": [_played(1, 1, finish=2), _played(1, 1, 1, finish=3), _played(1, 0, 1, finish=2), _played(0, 0)] * 2,
    "the last turn's own with it": [_played(1, 1, 3), _played(1, 1, 1, 3), _played(1, 1, 2), _played(1, 0, 1, 1, 4)],
    "its own, and a sum that counts it": [_played(1, 1, 4), _played(1, 1, 2), _played(1, 1, 1, 5), _played(0, 1, 1, 4)],
}


def test_a_score_that_is_no_share_is_named() -> None:
    played = [_played(-1, -1), _played(0, 1)]
    assert not [one for one in rewards(played) if one.about == "score"]
    played[0].trajectory.score = -471.0
    assert ["-471" in one.text for one in rewards(played) if one.about == "score"] == [True]


def test_what_a_players_move_was_answered_by_is_shown() -> None:
    played = _played(0, 0)
    for turn in played.trajectory.turns:
        turn.shown = SimpleNamespace(view=SimpleNamespace(admissible=()))
    for turn in played.trajectory.turns[1:]:
        turn.action, turn.action_valid, turn.observation = "find(order='A46')", False, "{'error': 'KeyError: A46'}"
    (found,) = actions({contest.PLAYER: [played]})
    assert "1 of 2 of the scripted player's responses are invalid" in found.text and "KeyError: A46" in found.text


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
    found = list(paid_twice({**PAID_TWICE, **PAID_ONCE}[name]))
    assert [one.ruins for one in found] == [False] * (name in PAID_TWICE), found


def test_turns_that_are_paid_at_the_end_count_as_in_training() -> None:
    class PaidLate(ToyEnvironment):
        def finish(self) -> Ending:
            return Ending(reward=0.5, turn_rewards={0: 0.25})

    row = {"task_id": "toy/0", "target": "nine", "dynamics_seed": 0}  # one turn, from zero to one
    (episode,) = play(PaidLate, [row], lambda asked: [Answer("<action>right</action>") for _ in asked])
    assert (episode.trajectory.reward, episode.trajectory.turn_rewards) == (0.75, [0.75])
    assert told([episode]).startswith("turn 1: 0.25, finish: 0.5 (turns: 1; in all 0.75)")


def _match(rates: dict[str, float], rows: int = 1000, first: int | None = None, seconds: float = 60) -> dict[str, Any]:
    """Players that win so often, as long as they are let play."""
    draw = random.Random(0)

    def play(who: str, some: Any, seconds: float) -> list[Any]:
        won = [draw.random() < rates[who] for _ in some]
        return [_played(float(one), won=one) for one in won]

    return contest.play_on(play, list(rates), range(rows), first, seconds)


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
    played = _match({contest.RANDOM: at_random, contest.PLAYER: scripted}, rows=contest.MOST)
    assert fewest <= len(played[contest.PLAYER]) == len(played[contest.RANDOM]) <= most
    assert [word in one.text for one in contest.findings(played)] == [True] * bool(word)


def test_a_difference_that_time_leaves_unknown_is_said() -> None:
    played = _match({contest.RANDOM: 0.3, contest.PLAYER: 0.35}, seconds=0.0)
    (said,) = contest.findings(played)
    assert len(played[contest.PLAYER]) == 2 and "can't be told" in said.text and "--episodes 8" in said.text


def test_rows_that_were_made_before_do_not_tell_how_long_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def play(who: str, some: Any, seconds: float) -> list[Any]:
        clock[0] += sum(4.0 for row in some if row >= 2)
        return [_played(float(row % 2), won=bool(row % 2)) for row in some]

    contest.play_on(play, [contest.PLAYER], range(100), None, 12.0)
    assert clock[0] <= 12.0


@pytest.mark.parametrize("count, found", [(2, False), (4, True)])
def test_two_episodes_that_time_left_do_not_ruin_a_task(count: int, found: bool) -> None:
    episodes = [_played(0.0, 0.0, won=False) for _ in range(count)]
    for one in episodes:
        one.trajectory.stop = StopReason.TURN_LIMIT
    assert [one.about for one in (*rewards(episodes), *ends(episodes, 2)) if one.ruins] == ["reward", "end"] * found


def test_episodes_that_were_asked_for_are_played_however_long_they_take() -> None:
    allowed = []

    def play(who: str, some: Any, seconds: float) -> list[Any]:
        allowed.append((len(some), seconds))
        return [_played(0.5, won=False) for _ in some]

    contest.play_on(play, [contest.RANDOM, contest.PLAYER], range(100), 8, 0.0)
    assert allowed == [(8, math.inf)] * 2


def test_an_episode_that_time_cut_is_neither_won_nor_lost() -> None:
    whole, cut = _played(1, won=True).trajectory, _played(0, won=False).trajectory
    cut.message = CUT
    assert success_of([whole, cut], False).startswith("1 of 1 won, reward 1 ")
    assert success_of([cut], False) == "none of 1 episodes was over in time"


def test_a_player_that_never_wins_is_wrong() -> None:
    played = _match({contest.RANDOM: 0.1, contest.PLAYER: 0.0}, first=8)
    assert [one.ruins for one in contest.findings(played)][0]


@pytest.mark.parametrize(("column", "word"), [("category", ""), ("house", "a column category")])
def test_categories_that_no_row_names_are_named(column: str, word: str) -> None:
    rows = [{"task_id": str(number), column: "ab"[number % 2]} for number in range(4)]
    opened = [(row, Opening(row["task_id"], "play", (), category=row[column])) for row in rows]
    assert [word in one.text for one in faults(rows, opened, no_skills)] == [True] * bool(word)
