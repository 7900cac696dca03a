"""`alignopsd new` for worlds of others; `.ci/worlds` plays the worlds themselves."""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fakes.own_task import fails

from alignopsd_trl.commands.cli import main
from alignopsd_trl.common.literals import literal


class SinglePlayerState:
    def __init__(self, turns: int | None, *kinds: str):
        self.max_turns = turns
        said = "Say [up] or [down], or [3 4]." if turns else "Free [X], jump as in [4 1]."
        self.observations = {0: [(-1, said, kind) for kind in kinds]}


class _Game:
    def __init__(self, name: str):
        self.name = name

    def reset(self, num_players: int, seed: int) -> None:
        faults: dict[str, Exception] = {
            "Chess-v0": AssertionError("The number of players has to be 2, received 1"),
            "Mafia-v0": AssertionError("Player count must be between 5 and 15."),
            "Wordle-v0": LookupError("Resource 'words' not found"),
            "Debate-v0": ValueError("OpenRouter API key not found"),
            "Odd-v0": SyntaxError("f-string: unmatched '['"),
        }
        if self.name == "Slow-v0":
            time.sleep(2)
        if self.name in faults:
            raise faults[self.name]
        self.state = (
            SinglePlayerState(9, "PROMPT") if self.name == "Hidden-v0" else SinglePlayerState(None, "GAME_BOARD")
        )
        if self.name == "Pair-v0":
            self.state = SimpleNamespace()


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """TextArena's registry, with games that fail as its own do."""
    arena: Any = ModuleType("textarena")
    arena.SinglePlayerState, arena.ObservationType = SinglePlayerState, SimpleNamespace(GAME_BOARD="GAME_BOARD")
    arena.make = lambda name: _Game(name.removesuffix("-raw"))
    registration: Any = ModuleType("textarena.envs.registration")
    names = ("Chess-v0", "Wordle-v0", "Debate-v0", "Odd-v0", "Slow-v0", "Hidden-v0", "Board-v0", "Pair-v0", "Mafia-v0")
    names += ("Bandit-v0", "Bandit-v0-hard", "FifteenPuzzle-v0")
    registration.ENV_REGISTRY = {f"{name}{kind}": None for name in names for kind in ("", "-raw", "-train")}
    for name, module in {
        "textarena": arena,
        "textarena.envs": ModuleType("e"),
        "textarena.envs.registration": registration,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_a_game_is_written_as_it_deals(arena: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "mine", "--textarena", "Hidden-v0-train", "--model", "tiny"])
    text = Path("mine/mine.py").read_text()
    assert (
        'GAME = "Hidden-v0"' in text
        and 'FORM = "[up] or [down]"' in text
        and "history_length = 10\n    max_turns = 11" in text
        and "class Mine(" in text
    )
    main(["new", "boards", "--textarena", "Board-v0", "--model", "tiny"])
    text = Path("boards/boards.py").read_text()
    assert "history_length = 2\n    max_turns = 50" in text and 'FORM = "[number number]"' in text
    assert "episodes=256" in Path("boards/train.py").read_text()
    assert 'skill_bank="boards_skills:hint"' in Path("boards/boards.py").read_text()
    assert not list(Path("boards").rglob("GuessTheNumber")), "games with a player of their own are not this one's"


NO_ADDRESSES = ["nope", "http://", "ftp://host", "http://a b", "http://host:port", "http://h/\n", "//h"]
NO_ADDRESSES += ['http://h"\nimport os\n"', "http://host:99999", "http://host:0"]


@pytest.mark.parametrize(
    ("option", "asked", "words"),
    [
        ("textarena", "Chess-v0", ["Chess-v0", "several players"]),
        ("textarena", "Pair-v0", ["Pair-v0", "several players"]),
        ("textarena", "Mafia-v0", ["Mafia-v0", "several players"]),
        ("textarena", "Wordle-v0", ["Wordle-v0", "a download", "words"]),
        ("textarena", "Debate-v0", ["Debate-v0", "a judge"]),
        ("textarena", "Odd-v0", ["Odd-v0", "SyntaxError"]),
        ("textarena", "Hiden-v0", ["Hiden-v0", "unknown", "Hidden-v0", "'list' prints all"]),
        ("textarena", "Bandit-v0", ["Bandit-v0", "nobody can win", "regret"]),
        ("textarena", "Bandit-v0-hard", ["Bandit-v0-hard", "nobody can win", "regret"]),
        ("textarena", "FifteenPuzzle-v0", ["FifteenPuzzle-v0", "nobody can win", "no solution"]),
        ("gymnasium", "Nope-v0", ["NameNotFound", "MODULE:ID"]),
        ("gymnasium", "gymnasium:FrozenLak-v1", ["NameNotFound", "Did you mean: `FrozenLake`?\n"]),
        ("scienceworld", "boil", ["Java", "default-jre-headless"]),
        *(("openenv", address, [repr(address), "http://HOST"]) for address in NO_ADDRESSES),
    ],
)
def test_a_world_that_cannot_be_played_is_refused_in_one_sentence(
    arena: None,
    option: str,
    asked: str,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)  # there is no Java
    fails(["new", str(tmp_path / "mine"), f"--{option}", asked], *words, capsys=capsys)
    assert not (tmp_path / "mine").exists()


def test_the_games_that_can_be_played_are_listed(
    arena: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alignopsd_trl.commands.own_task.worlds.SECONDS", 0.2)
    main(["new", "--textarena", "list"])
    said = capsys.readouterr().out.splitlines()
    played = [line for line in said if not line.startswith("can't be played here")]
    assert [line.split()[:3] for line in played] == [["Hidden-v0", "turns:", "9"], ["Board-v0", "turns:", "no"]]
    left = "\n".join(line for line in said if line not in played)
    for name, reason in {"Bandit-v0": "regret", "Chess-v0": "several players", "Wordle-v0": "a download"}.items():
        assert any(name in line and reason in line for line in left.splitlines()), name


def test_the_datasets_that_can_be_won_are_listed_and_written_with_room_for_their_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sums(list):
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return float(answer == entry["right"])

    made = {"sums": Sums([{"question": "1 + 1?", "answer": 2, "right": "2"}])}
    made["riddles"] = Sums([{"question": "Who?", "answer": "nobody", "right": "I"}])
    made["boards"] = Sums([{"question": "Then?", "answer": "0" * 200, "right": "0" * 200}])
    gym: Any = ModuleType("reasoning_gym")
    gym.create_dataset = lambda name, seed, size: made[name]
    factory: Any = ModuleType("reasoning_gym.factory")
    factory.DATASETS = made
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    main(["new", "--reasoning_gym", "list"])
    _, known, left = capsys.readouterr().out.splitlines()
    assert known.split(maxsplit=1) == ["sums", "such as: 1 + 1?"]
    assert left.startswith("can't be played here, nobody can win it") and left.endswith(": riddles")
    for name, room in (("sums", 96), ("boards", 432)):
        main(["new", str(tmp_path / f"some_{name}"), "--reasoning_gym", name, "--model", "tiny"])
        assert f'"max_completion_length": {room},' in (tmp_path / f"some_{name}" / "train.py").read_text()


def test_a_file_of_textworld_is_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "textworld", ModuleType("textworld"))
    monkeypatch.setattr("alignopsd_trl.commands.own_task.scaffold.has_smollm2", lambda: True)
    for kind in (".z8", ".json"):
        Path(f"game{kind}").write_text("a game")
    main(["new", "mine", "--textworld", "game.z8"])
    text = Path("mine/mine.py").read_text()
    assert '{"train": (1, 8), "test": (1, 8)}' in text and "FAMILY = {}" in text and 'ONE = "1.z8"' in text
    assert Path("mine/games/1.z8").read_text() == Path("mine/games/1.json").read_text() == "a game"
    assert "held_out" not in Path("mine/train.py").read_text(), "one task can't be held out of one"


@pytest.mark.parametrize(
    "tasks, way, held, at_once", [(150, 20, True, 6), (150, 10, True, 6), (14, 20, False, 6), (5, 20, False, 4)]
)
def test_a_recipe_of_scienceworld_suits_its_tasks_and_their_ways(
    tasks: int, way: int, held: bool, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world: Any = SimpleNamespace(
        get_task_names=lambda: ["boil"],
        load=lambda *given, **options: None,
        get_gold_action_sequence=lambda: ["wait"] * way,
        get_possible_actions=lambda: ["go OBJ", "move OBJ to OBJ", "reset task"],
        get_variations_train=lambda: range(tasks),
        get_variations_test=lambda: range(200, 209),
        close=lambda: None,
    )
    package: Any = ModuleType("scienceworld")
    package.ScienceWorldEnv = lambda server: world
    monkeypatch.setitem(sys.modules, "scienceworld", package)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/java")
    monkeypatch.setattr("alignopsd_trl.commands.own_task.scaffold.has_smollm2", lambda: True)
    monkeypatch.chdir(tmp_path)
    main(["new", "mine", "--scienceworld", "boil"])
    text = Path("mine/mine.py").read_text()
    assert f'"train": range(0, {tasks}), "test": range(200, 209)' in text and f"max_turns = {2 * way}" in text
    assert 'FORM = "go to X | move X to X"' in text, "the verbs stand in the prompt"
    recipe = Path("mine/train.py").read_text()
    assert ('"held_out": 16' in recipe) is held and f'"tasks_per_round": {at_once},' in recipe
    assert ('"history": "conversation"' in recipe and "skilled_share=0.75" in recipe) is (way == 10)


@pytest.mark.parametrize(
    "option, package",
    [
        (["--textarena", "Wordle-v0"], "textarena"),
        (["--textworld"], "textworld"),
        (["--scienceworld", "boil"], "scienceworld"),
        (["--reasoning_gym", "sums"], "reasoning-gym"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    option: list[str],
    package: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = package.replace("-", "_")
    for module in (name, f"{name}.factory", f"{name}.envs.registration"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/java")
    fails(["new", str(tmp_path / "mine"), *option], f"pip install {package}", capsys=capsys)


def test_a_gymnasium_of_numbers_is_written_and_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fails(["new", "lake", "--gymnasium", "FrozenLake-v1"], "bare numbers", "--seen MODULE:FUNCTION", capsys=capsys)
    fails(["new", "taxi", "--gymnasium", "Taxi-v3"], "deprecated", "Taxi-v4", capsys=capsys)
    main(["new", "lake", "--gymnasium", "FrozenLake-v1", "--seen", "drawn", "--model", "tiny"])
    text = Path("lake/lake.py").read_text()
    assert 'ID = "FrozenLake-v1"' in text and 'ACTIONS = ("move left", "move down", "move right", "move up")' in text
    assert "GOAL = 1.0" in text and "THRESHOLD = None" in text and "max_turns = 100" in text and "DRAWN = True" in text
    path = Path("lake/lake.py")
    path.write_text(text.replace("OPTIONS = {}", 'OPTIONS = {"is_slippery": False}').replace("(0, 1024)", "(0, 32)"))
    monkeypatch.chdir("lake")
    main(["demonstrate", "lake", "--episodes", "4"])
    rows = [json.loads(line) for line in Path("demonstrations.jsonl").read_text().splitlines()]
    assert {row["won"] for row in rows if row["skilled"]} == {True}, "the text is a way to win"
    shown = [row["prompt"][-1]["content"] for row in rows if row["skilled"]]
    assert "The way: move" in shown[0] and "[S]FFF" in shown[0] and "<action>action</action>" in shown[0]
    assert not any("The way" in row["prompt"][-1]["content"] for row in rows if not row["skilled"])


@pytest.mark.full
def test_the_text_of_a_lake_of_64_places_tells_them_and_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "wide_lake", "--gymnasium", "FrozenLake8x8-v1", "--seen", "drawn"])
    monkeypatch.chdir("wide_lake")
    main(["demonstrate", "wide_lake", "--episodes", "2"])
    shown = [json.loads(line)["prompt"][-1]["content"] for line in Path("demonstrations.jsonl").open()]
    assert any("Best: 0: move up;" in one and "; 62: move down" in one for one in shown)


@pytest.mark.parametrize(
    ("name", "least", "won"),
    [("Taxi-v4", 200, ("GOAL = 20.0", "THRESHOLD = None")), ("CartPole-v1", 500, ("GOAL = None", "THRESHOLD = 475.0"))],
)
def test_an_episode_is_won_by_the_worlds_own_success(
    name: str, least: int, won: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "mine", "--gymnasium", name, "--seen", "words:shown", "--model", "tiny"])
    text = Path("mine/mine.py").read_text()
    assert all(one in text for one in won) and f"max_turns = {least}" in text
    assert "pickup passenger" in text or "push cart to the left" in text, "actions have names"


def test_an_episode_that_costs_reward_is_not_won_before_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "mine", "--gymnasium", "MountainCar-v0", "--seen", "builtins:str", "--model", "tiny"])
    one = runpy.run_path("mine/mine.py")["Mine"]()
    one.reset(number=1)
    first, *_, last = [one.step("accelerate to the left") for _ in range(200)]
    assert (first.reward, first.won, first.done) == (-1.0, False, False), "-1 of a threshold of -110, at its first turn"
    assert (last.score, last.won, last.done) == (0.0, False, True), "a score is a share: tables print it in percent"


def test_a_list_says_what_each_environment_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium

    known = {name: gymnasium.registry[name] for name in ("Taxi-v4", "CartPole-v1", "Pendulum-v1")}
    monkeypatch.setattr(gymnasium, "registry", known)
    main(["new", "--gymnasium", "list"])
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "turns: 200" in said["Taxi-v4"] and "--seen drawn" in said["Taxi-v4"]
    assert said["CartPole-v1"].endswith("--seen MODULE:FUNCTION")
    assert said["Pendulum-v1"].endswith("--played MODULE:FUNCTION")


def test_pictures_want_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gymnasium

    class Seen(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict({"image": gymnasium.spaces.Box(0, 255, (3, 3, 3))})
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    if "seen-v0" not in gymnasium.registry:
        gymnasium.register("seen-v0", Seen)
    monkeypatch.chdir(tmp_path)
    fails(["new", "mine", "--gymnasium", "seen-v0"], "pictures", "--seen", capsys=capsys)
    seen = ["--seen", "words:shown"]
    fails(["new", "mine", "--gymnasium", "seen-v0", *seen], "acts by", "--played", capsys=capsys)
    wrong = ["--seen", "words", "--played", "words:acted"]
    fails(["new", "mine", "--gymnasium", "seen-v0", *wrong], "MODULE:FUNCTION", capsys=capsys)
    main(["new", "mine", "--gymnasium", "seen-v0", *seen, "--played", "words:acted", "--model", "tiny"])
    text = Path("mine/mine.py").read_text()
    assert 'seen = import_module("words").shown' in text and 'played = import_module("words").acted' in text
    assert "def seen" not in text and "ACTIONS = ()" in text


def test_what_a_user_gives_is_written_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "mine", "--openenv", "http://my_task:8000/MyTask", "--model", "tiny"])
    assert 'ADDRESS = "http://my_task:8000/MyTask"\n' in Path("mine/mine.py").read_text()
    odd = 'my_task\'s "worlds"'
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(f"{odd}.py").write_text(
        "import gymnasium\n\n\nclass Four(gymnasium.Env):\n    observation_space = gymnasium.spaces.Discrete(4)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n\n\ngymnasium.register('Four-v0', Four)\n"
    )
    main(["new", "my_world", "--gymnasium", f"{odd}:Four-v0", "--seen", "words:shown", "--model", "tiny"])
    assert f"ID = {literal(odd + ':Four-v0')}" in Path("my_world/my_world.py").read_text()


def test_a_number_of_textworld_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = ModuleType("textworld")
    package.GameOptions = lambda: SimpleNamespace(nb_rooms=1)
    monkeypatch.setitem(sys.modules, "textworld", package)
    for family in ("nb_rooms=\u00b2", "nb_rooms=-1", "nb_rooms=1e3", "__class__=1", "nb_rooms=1;import os"):
        fails(["new", str(tmp_path / "mine"), "--textworld", family], "NAME=NUMBER", capsys=capsys)


def _planned(options: Any) -> None:
    if getattr(options, "quest_breadth", 1) > 1:
        raise RuntimeError("No quest can be generated with the provided options")


def test_a_family_that_textworld_cannot_make_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = ModuleType("textworld")
    package.GameOptions, package.generator = SimpleNamespace, SimpleNamespace(make_game=_planned)
    monkeypatch.setitem(sys.modules, "textworld", package)
    words = ["--textworld quest_breadth=2 can't be played here", "No quest can be generated"]
    fails(["new", str(tmp_path / "mine"), "--textworld", "quest_breadth=2"], *words, capsys=capsys)
    assert not (tmp_path / "mine").exists()


WAY = ["go south", "close Box"]
WORST = "save RESTORE q quit undo g again script transcript verbose version superbrief notify oops z".split()
WORST += [" restart ", "look\ngo south", "go south. close box", "go south then close box", ""]


class _House:
    """A game whose interpreter shares one saved place between all episodes, as TextWorld's does."""

    saved = 0

    def __init__(self) -> None:
        self.close = lambda: None

    def reset(self) -> Any:
        self.at, self.heard = 0, []
        return self._state()

    def step(self, command: str) -> Any:
        self.heard.append(command)
        if command.lower() == "save":
            type(self).saved = self.at
        self.at = type(self).saved if command.lower() == "restore" else self.at + (command == WAY[self.at])
        return self._state(), self.at, self.at == 2

    def _state(self) -> Any:
        offered = ["look", *WAY[self.at : self.at + 1]]
        facts = {"description": "A room.", "objective": "Close it.", "feedback": f"Room {self.at}.\n>"}
        return SimpleNamespace(**facts, admissible_commands=offered, score=self.at, max_score=2, won=self.at == 2)


def test_words_of_the_interpreter_and_several_commands_are_no_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = ModuleType("textworld")
    package.GameOptions, package.EnvInfos, package.start = SimpleNamespace, SimpleNamespace, lambda file, told: _House()
    package.generator = SimpleNamespace(make_game=_planned)
    monkeypatch.setitem(sys.modules, "textworld", package)
    monkeypatch.chdir(tmp_path)
    main(["new", "mine", "--textworld", "--model", "tiny"])
    found = runpy.run_path("mine/mine.py")
    monkeypatch.setitem(found["Mine"].reset.__globals__, "game", str)
    one, other = found["Mine"](), found["Mine"]()
    one.reset(number=1)
    other.reset(number=1)
    other.step("go south")
    for word in WORST:
        for each in (one, other):
            before = list(each.world.heard)
            step = each.step(word)
            assert (step.valid, step.reward, step.done) == (False, 0.0, False) and "on offer" in step.observation
            assert each.world.heard == before, f"{word!r} reached the game"
    assert [one.step(word).reward for word in ("LOOK", "Go South ", "close box")] == [0.0, 0.5, 0.5]
    assert one.state.won and one.world.heard == ["look", *WAY]
