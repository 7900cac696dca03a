"""Worlds that somebody else made: what `alignopsd new` asks one before it writes a task that plays it.

Nothing here is needed to play: the files that are written use the world's own package alone.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from alignopsd_trl.commands.own_task.options import LIST
from alignopsd_trl.common.literals import literal
from alignopsd_trl.environments.base import Failure
from alignopsd_trl.environments.batch import limited

HOUSES = {"nb_rooms": 2, "nb_objects": 3, "quest_length": 2}
"""The family of TextWorld's games that is written by default, in its own options."""
FAMILIES = {
    "nb_rooms": "rooms of a house",
    "nb_objects": "things in it",
    "quest_length": "commands that win",
    "quest_breadth": "ways that must be gone, each of the quest's length",
    "nb_parallel_quests": "quests at once",
}
"""Options of a family of TextWorld's games."""
SKILLED = {"episodes=256)": "episodes=256, skilled_share=0.75)"}
"""In a recipe of TextWorld. Its player soon wins with the skill: half of the episodes have a fifth of the turns."""
DIALOGUE = SKILLED | {
    '"max_prompt_length": 512': '"history": "conversation",  # the rooms seen stay in the prompt\n'
    '    "past_thinking": "keep",\n    "max_prompt_length": 2560,\n    "skill_tokens": 256'
}
"""In a recipe of ScienceWorld, whose episodes have `DIALOGUES` turns at most."""
DIALOGUES = 20
PATHS = 6
"""Gold paths of ScienceWorld that say how long an episode may be; some take seconds to find."""
MOST_TURNS = 50
TEXTARENA, TEXTWORLD = "textarena==0.7.4", "textworld==1.7.0"
SHOWN = {"GuessTheNumber": slice(1, 2)}
"""Lines of the rules that suffice, of the games that have a player in the templates."""
NEVER_WON = {
    "Bandit": "its last press pays the regret, so that the best button pays nothing",
    "FifteenPuzzle": "half of its deals have no solution, and a solved one fails with AttributeError",
}
"""Games of TextArena that nobody can win as this version has them, and why."""
DRAWN = "drawn"
"""In place of a function ``seen``: what a Gymnasium environment draws of itself in letters."""
HELD_OUT = '\n    "held_out": 16,  # training tasks that choose the weights that stay'
"""A line of the recipes of other worlds."""
FEWEST = 64  # training tasks of which some can be held out
SECONDS = 5.0  # for one world to open, where all are listed
RIGHT = {"episodes=256)": "episodes=256, won_only=True)"}
"""In a recipe of reasoning-gym, whose player guesses without the answer."""
WON_BY_TEXT = {
    "episodes=256)": "episodes=256, won_only=True, skilled_share=0.75)",
    '"max_prompt_length": 512': '"max_prompt_length": 1024,\n    "skill_tokens": 384',
}
"""In a recipe of Gymnasium, where episodes by chance may be long and are mostly lost, and a text tells 64 places."""
UNKNOWN_ANSWER = "the answers that it keeps are not those that it takes"
QUESTIONS = 4  # of a dataset whose answers are tried
REQUEST = 240  # characters of a world's own description
_ADDRESS = re.compile(r"(?i:https?)://(\[[0-9a-fA-F:.]+\]|\w[\w.-]*)(:\d{1,5})?(/[\w./~%+?&=:,@-]*)?")


@dataclass(frozen=True)
class Written:
    """What the templates of a world become.

    Args:
        values: what names of the task's module are assigned, as literals.
        changes: texts of ours in the templates and what stands in their place.
        part: a folder of further templates in the world's own, which overwrite those.
        files: files to copy, or their texts, by their place in the task's folder.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    files: Mapping[str, Path | str] = field(default_factory=dict)


def ask(kind: str, asked: str, functions: Mapping[str, str]) -> Written:
    """Asks a world what it needs, and checks the value before it is written. Raises `ValueError` if its package is
    missing, or what was asked for can't be played here; the message says what is needed.

    Args:
        kind: the folder of templates; of a world the name of its package and option.
        asked: the option's value: an id, a task, a dataset, a file, options, the address of an OpenEnv server.
        functions: ``MODULE:FUNCTION`` for the functions ``seen`` and ``played`` of a Gymnasium environment.
    """
    known: dict[str, Callable[[str], Written]] = {
        "textarena": _textarena,
        "textworld": _textworld,
        "scienceworld": _scienceworld,
        "gymnasium": partial(_gymnasium, functions),
        "reasoning_gym": _reasoning,
        "openenv": lambda address: Written({"ADDRESS": server_address(address)}),
    }
    return known[kind](asked) if kind in known else Written()


def server_address(text: str) -> str:
    """Returns the address of a server. Raises `ValueError` unless it is one of http or https with a host, and
    with a port below 65536 if it names one."""
    found = _ADDRESS.fullmatch(text)
    if not found or int((found[2] or ":1")[1:]) not in range(1, 2**16):
        raise ValueError(f"the address {text!r} must be http://HOST:PORT or https://HOST of a server")
    return text


def _package(name: str, at_pip: str) -> Any:
    try:
        with redirect_stderr(StringIO()):  # nltk, which TextArena imports, would write there for ever
            return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"the package {name} can't be imported ({error}); install it: pip install {at_pip}") from None


def _unknown(what: str, asked: str, known: Any) -> ValueError:
    close = get_close_matches(asked, list(known), n=3, cutoff=0.4) or sorted(known)[:3]
    return ValueError(
        f"{what} {asked!r} is unknown; there are {len(known)}, such as {', '.join(close)}; {LIST!r} prints all"
    )


def listed(kind: str) -> Iterator[str]:
    """Yields a line for each value that a world's option takes here, with what it needs, then the names that it can't
    take, by the reason. Raises `ValueError` as `ask`."""
    tables: dict[str, tuple[Callable[[], list[str]], Callable[[str], str]]] = {
        "textarena": (_games, lambda name: f"turns: {_dealt(name).max_turns or 'no limit'}"),
        "textworld": (lambda: list(FAMILIES), lambda name: f"NAME=NUMBER, 1 or more: {FAMILIES[name]}"),
        "scienceworld": (_tasks, lambda name: "needs Java; its own variations are the rows"),
        "gymnasium": (_ids, _needs),
        "reasoning_gym": (lambda: sorted(_datasets()), lambda name: f"such as: {_answered(name)[0]['question']:.70}"),
    }
    names, about = tables[kind]
    without = dict[str, list[str]]()
    for name in names():
        with _quiet():  # here and not on the thread, which may not come back
            found = limited(lambda name=name: about(name), SECONDS)
        if isinstance(found, Failure):
            without.setdefault(_needed(found.message), []).append(name)
        else:
            yield f"{name:<42} {' '.join(found.split())}"
    for reason, some in without.items():
        yield f"can't be played here, {reason}: {', '.join(some)}"


def _dealt(name: str) -> Any:
    """Deals a game of TextArena to one player and returns its state. The game may raise anything."""
    if reason := NEVER_WON.get(name.partition("-")[0]):
        raise ValueError(reason)
    arena = importlib.import_module("textarena")
    game = arena.make(f"{name}-raw")
    game.reset(num_players=1, seed=0)
    if not isinstance(game.state, arena.SinglePlayerState):
        raise ValueError("the game keeps the state of several players")
    return game.state


@contextmanager
def _quiet() -> Generator[None]:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def _looked_at(option: str, name: str, look: Callable[[str], Any]) -> Any:
    """Returns what a look at one of a world's games finds. Raises `ValueError` if it can't be played here."""
    try:
        with _quiet():
            return look(name)
    except Exception as error:  # of any kind, from the world
        raise ValueError(
            f"--{option} {name} can't be played here: {_needed(Failure.of(error).message)}; alignopsd new --{option} "
            f"{LIST} shows those that can"
        ) from None


def _games() -> list[str]:
    registry = _package("textarena.envs.registration", TEXTARENA).ENV_REGISTRY
    return [one.removesuffix("-raw") for one in registry if one.endswith("-raw")]


def _textarena(asked: str) -> Written:
    name = asked.removesuffix("-raw").removesuffix("-train")
    if name not in (games := _games()):
        raise _unknown("the game", asked, games)
    part, state = name.partition("-")[0], _looked_at("textarena", name, _dealt)
    arena = importlib.import_module("textarena")
    board = any(kind is arena.ObservationType.GAME_BOARD for _, _, kind in state.observations[0])
    turns = min((state.max_turns or MOST_TURNS) + 2, MOST_TURNS)  # wrong moves are forgiven once
    shown = {"SHOWN": SHOWN[part]} if part in SHOWN else {}
    forms = re.findall(r"\[[^\[\]\n]{1,24}\]", "\n".join(text for _, text, _ in state.observations[0]))
    words = [one for one in dict.fromkeys(forms) if one[1:-1].isalpha() and len(one) > 3]
    form = min(forms, key=lambda one: bool(re.fullmatch(r"\[[A-Z]\]", one)), default="[move]")  # [X] is often a thing
    form = " or ".join(words) or re.sub(r"\d+", "number", form)
    told = {"GAME": name, **shown, "FORM": form, "history_length": 2 if board else 10, "max_turns": turns}
    return Written(told, part=part)


def _needed(said: str) -> str:
    """Says what a world would need that can't be played here, from the message of its failure."""
    told, kind = " ".join(said.split()), said.partition(":")[0]
    if found := next((why for why in (*NEVER_WON.values(), UNKNOWN_ANSWER) if why in told), None):
        return f"nobody can win it: {found}"
    if "player" in told.lower():
        return f"it needs several players ({told:.80})"
    if "API" in told:
        return f"it needs a judge behind an API ({told:.80})"
    if kind in ("LookupError", "KeyError", "FileNotFoundError", "OSError", "URLError"):
        return f"it needs a download ({told:.120})"
    return f"it fails with {told:.120}"


def _textworld(asked: str) -> Written:
    _package("textworld", TEXTWORLD)
    path = Path(asked).expanduser()
    if path.suffix == ".z8":
        if not path.is_file() or not path.with_suffix(".json").is_file():
            raise ValueError(f"{path} and {path.with_suffix('.json').name} beside it must be files that tw-make wrote")
        files = {f"games/1{kind}": path.with_suffix(kind) for kind in (".json", ".z8")}
        one = {"FAMILY": {}, "NUMBERS": {"train": (1, 8), "test": (1, 8)}, "ONE": "1.z8"}
        return Written(one, SKILLED | few(8), files=files)
    family = dict(HOUSES)
    for pair in filter(None, asked.split(",")):
        name, _, value = pair.partition("=")
        if name.strip() not in FAMILIES or not value.strip().isascii() or not value.strip().isdecimal():
            raise ValueError(
                f"--textworld {pair!r} must be FILE.z8 or NAME=NUMBER,... of textworld.GameOptions: "
                f"{', '.join(FAMILIES)}"
            )
        family[name.strip()] = int(value)
    _looked_at("textworld", asked, partial(_house, family))  # TextWorld can't make every family
    quest = family["quest_length"] * family.get("quest_breadth", 1) * family.get("nb_parallel_quests", 1)
    return Written({"FAMILY": family, "max_turns": max(12, 3 * quest)}, SKILLED)


def _house(family: Mapping[str, int], name: str) -> None:
    """Plans a house of a family, without its files. TextWorld may raise anything."""
    world = importlib.import_module("textworld")
    options = world.GameOptions()
    options.seeds = 1
    for option, value in family.items():
        setattr(options, option, value)
    world.generator.make_game(options)


def _science() -> Any:
    """Opens a world of ScienceWorld."""
    if shutil.which("java") is None:
        raise ValueError("ScienceWorld needs Java: install one, such as Debian's package default-jre-headless")
    return _package("scienceworld", "scienceworld==1.2.3").ScienceWorldEnv("")


def _tasks() -> list[str]:
    with closing(_science()) as world:
        return list(world.get_task_names())


def _scienceworld(asked: str) -> Written:
    with closing(_science()) as world:
        if asked not in world.get_task_names():
            raise _unknown("ScienceWorld's task", asked, world.get_task_names())
        world.load(asked, 0, "easy")
        verbs = [one.replace("go OBJ", "go to X").replace("OBJ", "X") for one in world.get_possible_actions()]
        train, test = (list(one) for one in (world.get_variations_train(), world.get_variations_test()))
        gold = []
        for variation in train[:: max(1, len(train) // PATHS)]:
            world.load(asked, variation, "easy", generateGoldPath=True)
            way = world.get_gold_action_sequence()
            gold.append(sum(not one.startswith("open door ") for one in way))  # doors are open
    splits = {"train": range(train[0], train[-1] + 1), "test": range(test[0], test[-1] + 1)}
    form = " | ".join(one for one in verbs if one not in ("reset task", "task"))
    turns = int(2 * median(gold))
    told = {"TASK": asked, "FORM": form, "SPLITS": splits, "max_turns": turns}
    return Written(told, few(len(train)) | (DIALOGUE if turns <= DIALOGUES else {}))


def few(tasks: int) -> dict[str, str]:
    """Returns what a recipe says otherwise where a world has few training tasks."""
    kept = {HELD_OUT: ""} if tasks < FEWEST else {}
    return kept | ({f'"tasks_per_round": {usual}': '"tasks_per_round": 4' for usual in (6, 8)} if tasks < 8 else {})


def _datasets() -> Mapping[str, Any]:
    return _package("reasoning_gym.factory", "reasoning-gym==0.1.25").DATASETS


def _answered(name: str) -> list[dict[str, Any]]:
    """Returns questions of a dataset of reasoning-gym. Raises `ValueError` if the answers that it keeps do not win."""
    source = importlib.import_module("reasoning_gym").create_dataset(name, seed=0, size=QUESTIONS)
    if any(source.score_answer(str(one["answer"]), one) < 1 for one in source):
        raise ValueError(UNKNOWN_ANSWER)
    return list(source)


def _reasoning(asked: str) -> Written:
    if asked not in (known := _datasets()):
        raise _unknown("reasoning-gym's dataset", asked, known)
    longest = max(len(str(one["answer"])) for one in _looked_at("reasoning_gym", asked, _answered))
    tokens = max(96, 32 + 2 * longest)  # the player's thought has the answer, too; a token is a character or more
    return Written({"NAME": asked}, RIGHT | {'"max_completion_length": 64': f'"max_completion_length": {tokens}'})


def _ids() -> list[str]:
    """Returns the newest versions of what Gymnasium registers."""
    newest = dict[str, tuple[int, str]]()
    for name, spec in _package("gymnasium", "gymnasium").registry.items():
        newest[name.rpartition("-v")[0]] = max(
            newest.get(name.rpartition("-v")[0], (-1, "")), (spec.version or 0, name)
        )
    return [name for _, name in newest.values()]


def _needs(name: str) -> str:
    """Says which options an environment of Gymnasium needs, and how many turns it has."""
    gym = importlib.import_module("gymnasium")
    with closing(gym.make(name)) as world:
        seen = f"--seen {DRAWN}" if _draws(world) else "--seen MODULE:FUNCTION"
        wants = [seen] if _unreadable(gym.spaces, world.observation_space) else []
        named = isinstance(world.action_space, gym.spaces.Discrete | gym.spaces.Text)
        wants += [] if named else ["--played MODULE:FUNCTION"]
        return f"turns: {_turns(world)}, needs: {' '.join(wants) or 'nothing'}"


def _gymnasium(functions: Mapping[str, str], asked: str) -> Written:
    gym = _package("gymnasium", "gymnasium")
    try:
        with _quiet():
            world = gym.make(asked)
    except Exception as error:  # of any kind, from a package that registers ids
        said, kind = " ".join(str(error).split()), type(error).__name__
        unknown = kind == "ModuleNotFoundError" or kind in ("NameNotFound", "NamespaceNotFound") and ":" not in asked
        remedy = "; install its package, and name the module that registers it: MODULE:ID" if unknown else ""
        raise ValueError(f"gymnasium.make({asked!r}) fails with {kind}: {said.rstrip('.'):.200}{remedy}") from None
    space, actions, draws = world.observation_space, world.action_space, _draws(world)
    if "seen" not in functions and (what := _unreadable(gym.spaces, space)):
        drawn = f"; or --seen {DRAWN}, which shows how it draws itself in letters" if draws else ""
        raise ValueError(
            f"{asked} shows {what} ({space!s:.80}), which tell a model of language nothing: give --seen "
            f"MODULE:FUNCTION, from them to a text{drawn}"
        )
    if functions.get("seen") == DRAWN and not draws:
        raise ValueError(f"{asked} does not draw itself in letters; give --seen MODULE:FUNCTION")
    if "played" not in functions and not isinstance(actions, gym.spaces.Discrete | gym.spaces.Text):
        raise ValueError(f"{asked} acts by {actions!s:.80}; give --played MODULE:FUNCTION, from a text to an action")
    listed = isinstance(actions, gym.spaces.Discrete) and "played" not in functions
    told = {"ID": asked, "REQUEST": _request(world, asked), "ACTIONS": _names(world) if listed else (), **_won(world)}
    told |= {"DRAWN": functions.get("seen") == DRAWN, "max_turns": _turns(world)}
    world.close()
    changes = dict(WON_BY_TEXT)
    for name, place in functions.items():
        module, _, function = place.partition(":")
        if place == DRAWN and name == "seen":
            continue
        if not module.replace(".", "_").isidentifier() or not function.isidentifier():
            raise ValueError(f"--{name} {place!r} must be MODULE:FUNCTION")
        changes[_BODIES[name]] = f"{name} = import_module({literal(module)}).{function}\n"
    return Written(told, changes)


def _turns(world: Any) -> int:
    return world.spec.max_episode_steps or getattr(world.unwrapped, "max_steps", None) or MOST_TURNS


def _draws(world: Any) -> bool:
    return "ansi" in world.metadata.get("render_modes", ())


def _request(world: Any, asked: str) -> str:
    """Returns the first sentences of an environment's own description."""
    text = inspect.getdoc(type(world.unwrapped)) or ""
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n") if one.strip() and one.strip()[0].isalpha()]
    sentences = re.split(r"(?<=[.!]) ", next(iter(paragraphs), ""))
    while len(" ".join(sentences)) > REQUEST and len(sentences) > 1:
        sentences.pop()
    return " ".join(sentences) if 0 < len(" ".join(sentences)) <= REQUEST else f"Play {asked}."


def _names(world: Any) -> tuple[str, ...]:
    """Returns the names of an environment's actions: its own, those of its description, or numbers."""
    own, count = world.unwrapped, world.action_space.n
    section = (inspect.getdoc(type(own)) or "").partition("## Action Space")[2].partition("##")[0]
    lines = dict(re.findall(r"^\s*[-*|]?\s*(\d+)\s*[:|]\s*([^|\n]+)", section, re.MULTILINE))
    told = [re.sub(r"\(.*?\)|[.`]", "", lines.get(str(one), "")).strip().lower() for one in range(count)]
    meanings = getattr(own, "get_action_meanings", list)()
    for names in ([one.name for one in getattr(own, "actions", None) or ()], meanings, told):
        if len(set(names) - {""}) == count:
            return tuple(names)
    return tuple(map(str, range(count)))


def _won(world: Any) -> dict[str, float | None]:
    """Returns when an episode is won: by its last reward, as its table of chances or a goal has it, or by its sum."""
    table, least = getattr(world.unwrapped, "P", None), world.spec.reward_threshold
    if table:
        ends = [paid for place in table.values() for some in place.values() for _, _, paid, ended in some if ended]
        return {"GOAL": float(max(ends)), "THRESHOLD": None} if ends else {"GOAL": None, "THRESHOLD": least or 0.0}
    return {"GOAL": PAID, "THRESHOLD": None} if least is None else {"GOAL": None, "THRESHOLD": float(least)}


PICTURES, NUMBERS = "pictures", "bare numbers"
PAID = 0.01
"""The least last reward of an episode that reached a goal, where nothing else says what success is."""

_BODIES = {
    "seen": 'def seen(observation):\n    """An observation as text."""\n    return str(observation)\n',
    "played": 'def played(action):\n    """The action that a text names."""\n'
    "    return ACTIONS.index(action) if ACTIONS else action\n",
}
"""The functions of the template in whose place a user's own come."""


def _unreadable(spaces: Any, space: Any) -> str:
    """Says what a model of language can't read of observations: pictures, or numbers without names; empty for none."""
    if isinstance(space, spaces.Dict):
        return next((what for one in space.values() if (what := _unreadable(spaces, one)) == PICTURES), "")
    if isinstance(space, spaces.Tuple):
        found = [_unreadable(spaces, one) for one in space]
        return PICTURES if PICTURES in found else NUMBERS if all(found) else ""
    if isinstance(space, spaces.Box) and len(space.shape) > 1:
        return PICTURES
    return (
        NUMBERS if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) else ""
    )
