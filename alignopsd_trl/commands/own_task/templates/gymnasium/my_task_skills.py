"""What the teacher reads of a task and the policy does not: the shortest way to win it, where a search finds one, or
the best action in each place of a table of chances. Elsewhere it is empty: write what is true and helps, or train by
reward alone (`python train.py --method grpo`)."""

import functools
from contextlib import closing

from my_task import ACTIONS, GOAL, MyTask, seen

from alignopsd_trl.environments import shortest_way

PLACES = 64  # of a table that are told at most
BEST = {}  # by the table and the start: most worlds have one table


def hint(task_text, row):
    return told(row["number"])


@functools.cache
def told(number):
    """The text of a row."""
    with closing(MyTask()) as environment:
        environment.reset(number)
        table = getattr(environment.world.unwrapped, "P", None)
        if table and any(len(results) > 1 for place in table.values() for results in place.values()):
            place = repr(table), environment.shown
            best = BEST[place] = BEST.get(place) or best_actions(table, environment.shown)
            return "Best: " + "; ".join(f"{seen(place)}: {action}" for place, action in best.items()) if best else ""
        way = way_by(table, environment.shown) if table else shortest_way(environment, ACTIONS, situation)
        return f"The way: {'; '.join(way)}" if way else ""


def way_by(table, start):
    """The fewest actions that win, by a table without chance; `None` if it has none."""
    known, ways = {start}, [(start, ())]
    for place, way in ways:  # which grows
        for action, ((_, then, paid, ended),) in table[place].items():
            if ended and paid >= GOAL:
                return (*way, ACTIONS[action])
            if not ended and then not in known:
                known.add(then)
                ways.append((then, (*way, ACTIONS[action])))
    return None


def situation(environment):
    """What decides how an episode goes on: what is seen, and the world's own plain values."""
    own = vars(environment.world.unwrapped)
    plain = {name: value for name, value in own.items() if type(value) in (bool, int, float, str, tuple)}
    plain |= {name: str(value) for name, value in own.items() if type(value).__name__ == "ndarray"}
    kept = sorted(f"{name}={plain[name]}" for name in plain if not name.startswith(("last", "step", "_")))
    return str(environment.shown), *kept


def best_actions(table, start):
    """The best action in each place that good play may reach, by value iteration; {} if there are too many."""
    value = dict.fromkeys(table, 0.0)

    def worth(place, action):
        return sum(
            share * (paid + 0.99 * value[then] * (not ended)) for share, then, paid, ended in table[place][action]
        )

    for _ in range(500):
        value = {place: max(worth(place, action) for action in table[place]) for place in table}
    best, places = {}, [start]
    for place in places:  # which grows
        if place not in best:
            action = max(table[place], key=lambda one, place=place: worth(place, one))
            best[place] = ACTIONS[action]
            places += [then for _, then, _, ended in table[place][action] if not ended]
    return best if len(best) <= PLACES else {}
