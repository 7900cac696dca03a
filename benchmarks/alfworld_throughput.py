"""How fast the ALFWorld engines are, and what they cost in memory.

    python benchmarks/alfworld_throughput.py            # everything, about ten minutes of CPU
    python benchmarks/alfworld_throughput.py --quick    # one minute

Plain (TextWorld's own) against fast on the same generated games and the same random commands, in one run, after
checking that both answer alike. All times are CPU seconds of the process that did the work, so that other work on the
machine does not count.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from alignopsd_trl.environments.alfworld import Factory
from alignopsd_trl.environments.alfworld.engine.games import Game
from alignopsd_trl.environments.alfworld.engine.generator import Variant, generate_all
from alignopsd_trl.environments.alfworld.engine.packages import versions
from alignopsd_trl.environments.alfworld.engine.play import Engine, known, make_engine
from alignopsd_trl.environments.alfworld.engine.translation import _path

SIZES = ((5, 8), (11, 13), (18, 20))
TYPES = ("pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_and_place_simple")
CLOCK_TICKS = 100  # per second, of /proc/<pid>/stat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resets", type=int, default=None, help="for the memory table (default 10000)")
    arguments = parser.parse_args()
    games, steps = (2, 20) if arguments.quick else (6, 40)
    print(versions())
    print("\nOne process (CPU, medians; commands/s without resets)")
    for size in SIZES:
        compare(size, draw(size, games), steps)
    rooms = draw((18, 20), 8 if arguments.quick else 32)
    print("\nPool, rooms of 18 to 20 receptacles, 64 games side by side")
    for workers in (1, 2):
        pool(rooms, workers, steps)
    print("\nMemory of one worker over many resets, recycling off")
    memory(draw((5, 20), 24 if arguments.quick else 200), arguments.resets or (500 if arguments.quick else 10_000))


def draw(size: tuple[int, int], count: int) -> list[Game]:
    """Proven games of a room size (the proof fills the cache of translations on disk)."""
    batch = Factory().batch(min(count, 32))
    wanted = [(TYPES[index % len(TYPES)], 1000 + index) for index in range(count)]
    try:
        return generate_all(wanted, batch, min(count, 32), Variant(size=size))
    finally:
        batch.close()


def compare(size: tuple[int, int], games: list[Game], steps: int) -> None:
    rates = {}
    answers = {}
    for name in ("plain", "fast"):
        engine = make_engine(name)
        first, again, per_step, answers[name] = measure(engine, games, steps, forget=name == "fast")
        rates[name] = len(per_step) / sum(per_step)
        print(
            f"  {size[0]:2}-{size[1]:2} receptacles, {name:5}: first load {first * 1e3:6.1f} ms, reset of a known game "
            f"{again * 1e3:6.1f} ms, step {statistics.median(per_step) * 1e3:7.3f} ms, {rates[name]:8.0f} steps/s"
        )
    same = answers["plain"] == answers["fast"]
    print(f"        fast / plain: {rates['fast'] / rates['plain']:.0f} times the steps/s; answers equal: {same}")


def measure(engine: Engine, games: Iterable[Game], steps: int, forget: bool) -> tuple[float, float, list[float], list]:
    """Medians of the first load (with translation) and of a second reset; seconds of every step; every answer."""
    first, again, per_step, answers = [], [], [], []
    for game in games:
        joined = game.joined()
        if forget:  # neither from memory nor from disk
            known.cache_clear()
            _path(joined["pddl_domain"], joined["pddl_problem"]).unlink(missing_ok=True)
        start = time.process_time()
        engine.load(joined)
        engine.reset()
        middle = time.process_time()
        moment = engine.reset()
        first.append(middle - start)
        again.append(time.process_time() - middle)
        rng = random.Random(game.task_id)
        for _ in range(steps):
            command = rng.choice([*moment.admissible, "fly away"])
            start = time.process_time()
            moment = engine.step(command)
            per_step.append(time.process_time() - start)
            answers.append(moment)
    return statistics.median(first), statistics.median(again), per_step, answers


def pool(games: list[Game], workers: int, steps: int) -> None:
    size = 64
    batch = Factory().batch(size, workers=workers)
    slots = list(range(size))
    tasks = [{"task_id": game.task_id, "game": game.joined()} for game in (games * size)[:size]]
    batch.reset(slots, tasks)
    openings = batch.reset(slots, tasks)
    rng = random.Random(0)
    admissible = [opening.admissible for opening in openings]
    before, own, wall = cpu(batch.pids), time.process_time(), time.monotonic()
    for _ in range(steps):
        answers = batch.step(slots, [rng.choice(commands) for commands in admissible])
        admissible = [answer.admissible for answer in answers]
    used = cpu(batch.pids) - before
    print(
        f"  {workers} worker(s): {size * steps / used:6.0f} steps per worker CPU second, parent "
        f"{(time.process_time() - own) / (size * steps) * 1e3:.3f} ms CPU a step, "
        f"{size * steps / (time.monotonic() - wall):6.0f} steps/s of wall time, "
        f"{sum(map(resident, batch.pids)) / workers:.0f} MiB a worker"
    )
    batch.close()


def memory(games: list[Game], resets: int) -> None:
    from alignopsd_trl.environments.processes import ProcessBatch

    batch = ProcessBatch(Factory(), 1, workers=1, recycle_after=10**9)
    tasks = [{"task_id": game.task_id, "game": game.joined()} for game in games]
    print(f"  started {resident(batch.pids[0]):.1f} MiB")
    for count in range(1, resets + 1):
        batch.reset([0], [tasks[count % len(tasks)]])
        batch.step([0], ["look"])
        if count in (1, len(tasks)) or count % (resets // 10) == 0:
            print(f"  {count:6} resets, {min(count, len(tasks)):4} games: {resident(batch.pids[0]):.1f} MiB")
    batch.close()
    for size in (1, 32):
        batch = ProcessBatch(Factory(), size, workers=1)
        batch.reset(list(range(size)), (tasks * size)[:size])
        print(f"  {size:3} live game(s) in one worker: {resident(batch.pids[0]):.1f} MiB")
        batch.close()


def cpu(pids: Iterable[int]) -> float:
    """CPU seconds that processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / CLOCK_TICKS


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


if __name__ == "__main__":
    main()
