"""Worlds that somebody else made: what `alignopsd new` asks one before it writes a task that plays it.

Nothing here is needed to play: the files that are written use the world's own package alone.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
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
SKILLED = {"episodes=256)": "episodes=256, skilled_share=0.75)"}
"""In a recipe of TextWorld. Its player soon wins with the skill: half of the episodes have a fifth of the turns."""
PATHS = 6
"""Gold paths of ScienceWorld that say how long an episode may be; some take seconds to find."""
MOST_TURNS = 50
TEXTARENA = "textarena==0.7.4"
SHOWN = {"GuessTheNumber": slice(1, 2)}
"""Lines of the rules that suffice, of the games that have a player in the templates."""
NEVER_WON = {
    "Bandit": "its last press pays the regret, so that the best button pays nothing",
    "FifteenPuzzle": "half of its deals have no solution, and a solved one fails with AttributeError",
}
"""Games of TextArena that nobody can win as this version has them, and why."""
HELD_OUT = '\n    "held_out": 16,  # training tasks that choose the weights that stay'
"""A line of the recipes of other worlds."""
FEWEST = 64  # training tasks of which some can be held out
SECONDS = 5.0  # for a game of TextArena to deal
_ADDRESS = re.compile(r"(?i:https?)://(\[[0-9a-fA-F:.]+\]|\w[\w.-]*)(:\d{1,5})?(/[\w./~%+?&=:,@-]*)?")


@dataclass(frozen=True)
class Written:
    """What the templates of a world become.

    Args:
        values: what names of the task's module are assigned, as literals.
        changes: texts of ours in the templates and what stands in their place.
        part: a folder of further templates in the world's own, which overwrite those.
        files: files to copy, by their place in the task's folder.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)


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
    """Returns the address of a server. Raises `ValueError` unless it is one of http or https with a host."""
    if not _ADDRESS.fullmatch(text):
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
    return ValueError(f"{what} {asked!r} is unknown; there are {len(known)}, such as {', '.join(close)}")


def textarena_table() -> Iterator[str]:
    """Yields a line for each game of TextArena that one player can play here, then the number of the others."""
    games, others = _games(), 0
    yield f"{'id':<32}turns"
    for name in games:
        with _quiet():  # here and not on the thread, which may not come back
            found = limited(lambda name=name: _dealt(name), SECONDS)
        if isinstance(found, Failure):
            others += 1
        else:
            yield f"{name:<32}{found.max_turns or 'no limit'}"
    yield f"{others} others can't be won, or need a download, several players, a judge or {SECONDS:g} s to deal"


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


def _games() -> list[str]:
    registry = _package("textarena.envs.registration", TEXTARENA).ENV_REGISTRY
    return [one.removesuffix("-raw") for one in registry if one.endswith("-raw")]


def _textarena(asked: str) -> Written:
    name = asked.removesuffix("-raw").removesuffix("-train")
    if name not in (games := _games()):
        raise _unknown("the game", asked, games)
    part = name.partition("-")[0]
    try:
        with _quiet():
            state = _dealt(name)
    except Exception as error:  # of any kind, from the game
        raise ValueError(
            f"TextArena's {name} can't be played here: {_needed(error)}; alignopsd new --textarena {LIST} shows those "
            "that can"
        ) from None
    arena = importlib.import_module("textarena")
    board = any(kind is arena.ObservationType.GAME_BOARD for _, _, kind in state.observations[0])
    turns = min((state.max_turns or MOST_TURNS) + 2, MOST_TURNS)  # wrong moves are forgiven once
    shown = {"SHOWN": SHOWN[part]} if part in SHOWN else {}
    told = {"GAME": name, **shown, "history_length": 2 if board else 10, "max_turns": turns}
    return Written(told, part=part)


def _needed(error: Exception) -> str:
    """Says what a game of TextArena would need."""
    said = " ".join(str(error).split())
    if said in NEVER_WON.values():
        return f"nobody can win it: {said}"
    if "player" in said:
        return f"it needs several players ({said:.80})"
    if "API" in said:
        return f"it needs a judge behind an API ({said:.80})"
    if isinstance(error, LookupError | OSError):
        return f"it needs a download ({said:.120})"
    return f"it fails with {type(error).__name__} ({said:.120})"


def _textworld(asked: str) -> Written:
    world = _package("textworld", "textworld==1.7.0")
    path = Path(asked).expanduser()
    if path.suffix == ".z8":
        if not path.is_file() or not path.with_suffix(".json").is_file():
            raise ValueError(f"{path} and {path.with_suffix('.json').name} beside it must be files that tw-make wrote")
        files = {f"games/1{kind}": path.with_suffix(kind) for kind in (".json", ".z8")}
        one = {"FAMILY": {}, "NUMBERS": {"train": (1, 8), "test": (1, 8)}, "ONE": "1.z8"}
        return Written(one, SKILLED | _few(8), files=files)
    family, options = dict(HOUSES), world.GameOptions()
    for pair in filter(None, asked.split(",")):
        name, _, value = pair.partition("=")
        if not isinstance(getattr(options, name.strip(), None), int) or not value.strip().isdecimal():
            known = "nb_rooms, nb_objects, quest_length, quest_breadth, nb_parallel_quests"
            raise ValueError(
                f"--textworld {pair!r} must be FILE.z8 or NAME=NUMBER,... of textworld.GameOptions: {known}"
            )
        family[name.strip()] = int(value)
    return Written({"FAMILY": family}, SKILLED)


def _scienceworld(asked: str) -> Written:
    if shutil.which("java") is None:
        raise ValueError("ScienceWorld needs Java: install one, such as Debian's package default-jre-headless")
    world = _package("scienceworld", "scienceworld==1.2.3").ScienceWorldEnv("")
    try:
        if asked not in world.get_task_names():
            raise _unknown("ScienceWorld's task", asked, world.get_task_names())
        world.load(asked, 0, "easy")
        train, test = (list(one) for one in (world.get_variations_train(), world.get_variations_test()))
        gold = []
        for variation in train[:: max(1, len(train) // PATHS)]:
            world.load(asked, variation, "easy", generateGoldPath=True)
            gold.append(len(world.get_gold_action_sequence()))
    finally:
        world.close()
    splits = {"train": range(train[0], train[-1] + 1), "test": range(test[0], test[-1] + 1)}
    return Written({"TASK": asked, "SPLITS": splits, "max_turns": int(2 * median(gold))}, _few(len(train)))


def _few(tasks: int) -> dict[str, str]:
    """Returns what a recipe says otherwise where a world has few training tasks."""
    kept = {HELD_OUT: ""} if tasks < FEWEST else {}
    return kept | ({f'"tasks_per_round": {usual}': '"tasks_per_round": 4' for usual in (6, 8)} if tasks < 8 else {})


def _reasoning(asked: str) -> Written:
    known = _package("reasoning_gym.factory", "reasoning-gym==0.1.25").DATASETS
    if asked not in known:
        raise _unknown("reasoning-gym's dataset", asked, known)
    return Written({"NAME": asked})


def _gymnasium(functions: Mapping[str, str], asked: str) -> Written:
    gym = _package("gymnasium", "gymnasium")
    try:
        world = gym.make(asked)
    except Exception as error:  # of any kind, from a package that registers ids
        said = " ".join(str(error).split())
        raise ValueError(
            f"gymnasium.make({asked!r}) fails with {type(error).__name__} ({said:.160}); install its package, and name "
            "the module that registers it: MODULE:ID"
        ) from None
    space, actions = world.observation_space, world.action_space
    if "seen" not in functions and _is_picture(gym.spaces, space):
        raise ValueError(f"{asked} shows pictures ({space!s:.80}); give --seen MODULE:FUNCTION, from them to a text")
    discrete, text = (isinstance(actions, kind) for kind in (gym.spaces.Discrete, gym.spaces.Text))
    if "played" not in functions and not discrete and not text:
        raise ValueError(f"{asked} acts by {actions!s:.80}; give --played MODULE:FUNCTION, from a text to an action")
    own = [one.name for one in getattr(world.unwrapped, "actions", ())] if discrete else []
    named = own if len(own) == getattr(actions, "n", 0) else [str(one) for one in range(getattr(actions, "n", 0))]
    offered = tuple(named) if discrete and "played" not in functions else ()
    world.close()
    changes = {}
    for name, place in functions.items():
        module, _, function = place.partition(":")
        if not module.replace(".", "_").isidentifier() or not function.isidentifier():
            raise ValueError(f"--{name} {place!r} must be MODULE:FUNCTION")
        changes[_BODIES[name]] = f"{name} = import_module({literal(module)}).{function}\n"
    if functions:
        changes["from pathlib import Path\n"] = "from importlib import import_module\nfrom pathlib import Path\n"
    return Written({"ID": asked, "ACTIONS": offered}, changes)


_BODIES = {
    "seen": 'def seen(observation):\n    """An observation as text."""\n    return str(observation)\n',
    "played": 'def played(action):\n    """The action that a text names."""\n'
    "    return ACTIONS.index(action) if ACTIONS else action\n",
}
"""The functions of the template in whose place a user's own come."""


def _is_picture(spaces: Any, space: Any) -> bool:
    if isinstance(space, spaces.Dict):
        return any(_is_picture(spaces, one) for one in space.values())
    if isinstance(space, spaces.Tuple):
        return any(_is_picture(spaces, one) for one in space)
    return isinstance(space, spaces.Box) and len(space.shape) > 1
