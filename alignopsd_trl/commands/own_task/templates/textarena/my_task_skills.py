"""What the teacher reads of a game and the policy does not: what the game hides, or the shortest way to win, where a
search by the moves that the rules show finds one. Elsewhere it is empty: write what is true and helps, or train by
reward alone (`python train.py --method grpo`)."""

import functools
import re
from itertools import product

from my_task import MyTask

from alignopsd_trl.environments import shortest_way

SECRET = re.compile(r"secret|solution|answer|number|word|truth|draws|full|ball|dealer|hidden|mine")
ROOM = 400  # characters of a text
MOVES = 60  # that a search tries at most


def hint(task_text, row):
    return told(row["number"])


@functools.cache
def told(number):
    """The text of a row."""
    game, shown = dealt(number)
    secrets = {}
    for name, value in values(game).items():
        text = written(value)
        differs = any(other.get(name) != value for other in others())
        if SECRET.search(name) and differs and text not in (*secrets.values(), "") and not within(text, shown):
            secrets[name] = text
    text = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in secrets.items() if len(value) <= ROOM)
    if text:
        return f"The game hides {text}"
    way = shortest_way(game, moves(shown), lambda one: repr(values(one)), seconds=5)
    return f"The way: {'; '.join(way)}" if way else ""


@functools.cache
def others():
    """What the game knows of other deals: what it hides differs between them. A deal may take a second."""
    return [values(dealt(number)[0]) for number in (1_000_001, 1_000_002, 1_000_003)]


def dealt(number):
    environment = MyTask()
    opening = environment.reset(number)
    return environment, f"{opening.task_text}\n{opening.observation}"


def values(environment):
    """What a game knows of its deal, by name: all but what it counts. Arrays and sets are lists."""
    game = environment.game
    known = {**vars(game), **game.state.game_state}
    known |= {name: value.tolist() for name, value in known.items() if hasattr(value, "tolist")}
    known |= {name: sorted(value, key=repr) for name, value in known.items() if isinstance(value, set)}
    plain = {name: one for name, one in known.items() if type(one) in (bool, int, float, str, list, tuple, dict)}
    return {name: value for name, value in plain.items() if "turn" not in name and "moves" not in name}


def written(value):
    """A value in words: cells of a row apart by blanks, rows by strokes."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {written(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        rows = any(isinstance(one, list | tuple) for one in value)
        return (" / " if rows else " ").join(map(written, value))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def within(text, shown):
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", shown) is not None and not text.isdecimal()


def moves(shown):
    """Moves of the forms that a text shows in brackets: words as they are, single capitals as any that it has."""
    capitals = sorted(set(re.findall(r"\b[A-Z]\b", shown)))
    forms = dict.fromkeys(re.findall(r"\[[^\[\]\n]{1,24}\]", shown))
    every = []
    for form in forms:
        if re.search(r"[A-Z]", form):
            parts = [capitals if re.fullmatch("[A-Z]", part) else [part] for part in re.split(r"\b([A-Z])\b", form)]
            every += ["".join(one) for one in product(*parts)]
        else:
            every.append(form)
    return list(dict.fromkeys(every))[:MOVES]
