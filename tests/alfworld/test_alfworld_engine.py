from __future__ import annotations

import os
import random
import sys
import threading

import pytest
from alfworld_files import games, needs_engine, task

from alignopsd_trl.environments.alfworld import AlfWorldEnvironment, AlfWorldOptions
from alignopsd_trl.environments.alfworld.engine import library, translation
from alignopsd_trl.environments.alfworld.engine.grammar import Grammar
from alignopsd_trl.environments.alfworld.engine.packages import logic_files
from alignopsd_trl.environments.alfworld.engine.play import known, make_engine

needs_engine()

FIRST = next(iter(games().values()))


def curious_play(engine, game, steps, seed):
    """Tries kinds of commands that were not tried yet first, and sends nonsense in between."""
    engine.load(game)
    moments = [engine.reset()]
    rng = random.Random(seed)
    tried: dict[str, int] = {}
    for number in range(steps):
        commands = list(moments[-1].admissible)
        rng.shuffle(commands)
        command = min(commands, key=lambda command: tried.get(command.split()[0], 0))
        tried[command.split()[0]] = tried.get(command.split()[0], 0) + 1
        moments.append(engine.step("dance" if number % 9 == 8 else f" {command}\n"))
    return moments


def test_fast_equals_plain_on_other_games_and_commands():
    from alignopsd_trl.environments.alfworld.engine.generator import Variant, draw

    fast, plain = make_engine("fast"), make_engine("plain")
    for kind, seed in (("pick_heat_then_place_in_recep", 5), ("look_at_obj_in_light", 11)):
        game = draw(kind, seed, variant=Variant(size=(5, 8))).joined()
        expected = curious_play(plain, game, 15, seed)
        assert curious_play(fast, game, 15, seed) == expected
        assert curious_play(make_engine("fast"), game, 15, seed) == expected, "a game that is known already"


def tour(engine, verbs):
    """For each verb: walks around, opening what is closed, until such a command is possible, and gives it."""
    moments = [engine.reset()]
    places = [command for command in moments[0].admissible if command.startswith("go to")]

    def send(command):
        moments.append(engine.step(command))

    for verb in verbs:
        for place in places:
            possible = [command for command in moments[-1].admissible if command.startswith(verb)]
            if possible:
                send(possible[0])
                break
            send(place)
            for command in moments[-1].admissible:
                if command.startswith("open"):
                    send(command)
    return moments


def test_slicing_and_examining_what_was_sliced():
    needed = ("(sliceable Bread", "(objectType ButterKnife")
    game = min(
        (game for game in games().values() if all(fact in game.pddl_problem for fact in needed)),
        key=lambda game: len(game.pddl_problem),
    )
    told = {}
    for name in ("fast", "plain"):
        engine = make_engine(name)
        engine.load(game.joined())
        told[name] = tour(engine, ("take butterknife", "slice bread", "move", "take bread", "examine bread"))
    assert told["fast"] == told["plain"]
    texts = [moment.observation for moment in told["fast"]]
    assert any(text.startswith("You sliced the bread") for text in texts) and texts[-1].startswith("This is a sliced")


def test_grammar_of_an_older_release_is_followed():
    game = FIRST.joined()
    game["grammar"] = game["grammar"].replace('"move {o} to {r}"', '"put {o} in/on {r}"')
    fast, plain = make_engine("fast"), make_engine("plain")
    old = [command.replace("move", "put").replace(" to ", " in/on ", 1) for command in FIRST.walkthrough]
    commands = [new if new.startswith("go") else other for new, other in zip(FIRST.walkthrough, old, strict=True)]
    for engine in (fast, plain):
        engine.load(game)
        engine.reset()
    assert [fast.step(command) for command in commands] == [plain.step(command) for command in commands]
    assert fast.step("look").won


def test_goal_sentences_are_not_mixed_up():
    first, other = (list(games().values())[index] for index in (0, 5))
    environment = AlfWorldEnvironment()
    texts = []
    for game in (first, other, first):
        texts.append(environment.reset(**task(game)).task_text)
    assert texts == [f"{first.goal}.", f"{other.goal}.", f"{first.goal}."]


def test_unknown_rule_and_unparsable_grammar_are_named():
    with pytest.raises(ValueError, match="does not parse"):
        Grammar(logic_files()[1][:500])


CODE = (
    "__import__('os').getcwd()",
    "r.__class__",
    "r.name.upper()",
    "'a' * 10",
    "r.name if r else ''",
    "().__class__.__base__.__subclasses__()",
    "(lambda: r)()",
    "r.name +",
)


@pytest.mark.parametrize("name", ["fast", "plain"])
@pytest.mark.parametrize("code", CODE)
def test_code_in_a_game_is_refused_before_it_is_played(code, name):
    """Also where no play comes to it."""
    game = FIRST.joined()
    game["grammar"] = game["grammar"].replace("You close the {r.name}.", f"You close the {{{code}}}.")
    with pytest.raises(ValueError, match="the game's grammar (has the expression|does not parse)"):
        make_engine(name).load(game)


def test_only_a_win_ends_an_episode_and_nothing_comes_after():
    environment = AlfWorldEnvironment(AlfWorldOptions(max_turns=3))
    environment.reset(**task(FIRST))
    steps = [environment.step(command) for command in ("", "look", "nonsense", *FIRST.walkthrough)]
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True], "the turn limit is the caller's"
    assert (steps[-1].won, steps[-1].score, steps[-1].reward) == (True, 1.0, 10.0)
    assert environment.step("look") is steps[-1]


def test_play_leaves_global_state_alone(capsys):
    random.seed(7)
    state, arguments, output = random.getstate(), list(sys.argv), sys.stdout
    known.cache_clear()
    environment = AlfWorldEnvironment()
    environment.reset(**task(FIRST))
    environment.step(FIRST.walkthrough[0])
    assert random.getstate() == state and sys.argv == arguments and sys.stdout is output
    assert capsys.readouterr().out == ""


def test_threads_of_one_process_do_not_disturb_each_other():
    won, errors = [], []

    def play(game):
        environment = AlfWorldEnvironment()
        try:
            environment.reset(**task(game))
            won.append([environment.step(command) for command in game.walkthrough][-1].won)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=play, args=(game,)) for game in list(games().values())[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and won == [True] * 4


def test_engines_that_are_made_and_closed_do_not_add_up():
    make_engine("fast").close()
    idle = len(library._idle)
    for _ in range(20):
        engine = make_engine("fast")
        engine.load(FIRST.joined())
        engine.reset()
        engine.close()
    assert len(library._idle) == idle


def test_two_live_games_do_not_share_state():
    one, two = AlfWorldEnvironment(), AlfWorldEnvironment()
    one.reset(**task(FIRST))
    two.reset(**task(FIRST))
    one.step(FIRST.walkthrough[0])
    assert two.step("look").observation.startswith("You are in the middle of a room")


def test_a_known_problem_is_not_translated_again(monkeypatch):
    import fast_downward

    domain, problem = logic_files()[0], FIRST.pddl_problem
    expected = translation.translate(domain, problem)
    monkeypatch.setattr(fast_downward, "pddl2sas", lambda *_: pytest.fail("translated again"))
    assert translation.translate(domain, problem) == expected


@pytest.mark.parametrize("damage", [b"", b"\0\0\0\0", b"nonsense" * 10])
def test_a_damaged_cache_is_replaced(damage, caplog):
    domain, problem = logic_files()[0], FIRST.pddl_problem
    expected = translation.translate(domain, problem)
    path = translation._path(domain, problem)
    path.write_bytes(damage)
    assert translation.translate(domain, problem) == expected
    assert str(path) in caplog.text and path.read_bytes() != damage


def test_a_full_disk_does_not_stop_play(monkeypatch, caplog):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(translation, "write_atomically", full)
    translation._path(logic_files()[0], FIRST.pddl_problem).unlink(missing_ok=True)
    known.cache_clear()
    environment = AlfWorldEnvironment()
    environment.reset(**task(FIRST))
    assert [environment.step(command) for command in FIRST.walkthrough][-1].won
    assert "No space left" in caplog.text


def test_a_problem_that_is_no_pddl_is_one_clear_error():
    environment = AlfWorldEnvironment()
    for broken in ("", "(define", FIRST.pddl_problem[:900]):
        with pytest.raises(ValueError, match="can't be translated"):
            environment.reset(task_id=FIRST.task_id, game=FIRST.joined() | {"pddl_problem": broken})
    assert environment.reset(**task(FIRST))


def test_library_copies_are_trimmed_and_need_no_disk(tmp_path, monkeypatch):
    from fast_downward.interface import DOWNWARD_LIB_PATH

    image = library.loadable_part(str(DOWNWARD_LIB_PATH))
    assert image is not None and len(image) <= os.path.getsize(DOWNWARD_LIB_PATH)
    plain = tmp_path / "x.so"
    plain.write_bytes(b"not a library")
    assert library.loadable_part(str(plain)) is None
    monkeypatch.setattr(library, "_idle", [])
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    engine = make_engine("fast")
    engine.load(FIRST.joined())
    assert engine.reset().admissible
