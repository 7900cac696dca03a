"""What a WebShop costs: construction, memory, resets, steps and searches, by catalogue size and number of processes.

Usage: ``python benchmarks/webshop_throughput.py --products 100 1000 10000 --processes 1 2 --episodes 200``

Synthetic catalogues (Zipf-distributed words, the options and attributes of real ones) are written to a temporary folder
in the official format. The episode mix is reset, search, next page, previous page, item, up to two options,
description, back, buy. All rates are per second of process CPU time; memory is resident, per process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

KINDS = ("fashion", "beauty", "grocery", "electronics", "garden")
OPTIONS = {"color": ("black", "navy blue", "wine red"), "size": ("small", "medium", "x-large"), "fit": ("slim", "wide")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--queries", type=int, default=300)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for products in chosen.products:
            data = Path(folder) / str(products)
            write_catalogue(data, products)
            prepared = in_process(prepare, str(data), folder)
            size = f"{prepared['mib']:.1f} MiB on disk, {prepared['postings']:.1f} of them postings"
            print(f"{products:,} products: {prepared['seconds']:.2f} s CPU to prepare, {size}")
            for processes in chosen.processes:
                report(processes, play_all(processes, str(data), folder, chosen.episodes, chosen.queries))


def write_catalogue(folder: Path, products: int) -> None:
    """An official-format catalogue of invented products, written one by one: the largest does not fit into memory."""
    folder.mkdir()
    generator = random.Random(0)
    words = [f"{a}{b}{c}" for a in ("bra", "nor", "ta", "qui") for b in "bdfglmnprst" for c in ("ado", "ent", "ing")]
    words += [f"w{number}" for number in range(20_000)]
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))

    def text(count: int) -> str:
        return " ".join(generator.choices(words, cum_weights=weights, k=count))

    with open(folder / "items_shuffle.json", "w") as items, open(folder / "items_ins_v2.json", "w") as attributes:
        for number in range(products):
            asin = f"B{number:09d}"
            names = generator.sample(sorted(OPTIONS), generator.choice((0, 1, 2, 2)))
            wanted = [text(2) for _ in range(3)]
            instruction = {"instruction": f"find {text(3)}", "instruction_attributes": wanted[:2]}
            item = {
                "asin": asin,
                "name": text(14),
                "full_description": text(70),
                "small_description": [text(14) for _ in range(5)],
                "pricing": f"${generator.uniform(3, 300):.2f}" + ("" if number % 3 else " - $301.00"),
                "customization_options": {name: [{"value": value} for value in OPTIONS[name]] for name in names},
                "images": ["x"],
                "category": KINDS[number % len(KINDS)],
                "query": text(2),
                "product_category": " › ".join(text(1) for _ in range(4)),
            }
            items.write(("," if number else "[") + json.dumps(item, ensure_ascii=False))
            described = json.dumps({"attributes": wanted, **instruction})
            attributes.write(("," if number else "{") + json.dumps(asin) + ":" + described)
        items.write("]")
        attributes.write("}")


def in_process(call: Any, *arguments: Any) -> Any:
    """Runs a function in a fresh process, so that its memory does not count elsewhere."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


def play_all(processes: int, data: str, cache: str, episodes: int, queries: int) -> list[dict[str, float]]:
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.starmap(measure, [(data, cache, episodes, queries, seed) for seed in range(processes)], chunksize=1)


def report(processes: int, results: list[dict[str, float]]) -> None:
    mean = {name: sum(result[name] for result in results) / processes for name in results[0]}
    print(
        f"  {processes} process(es): import {mean['import']:.2f} s, open {mean['open']:.2f} s; memory "
        f"{mean['before']:.0f} -> {mean['opened']:.0f} -> {mean['after']:.0f} MiB ({mean['private']:.0f} private); "
        f"{mean['resets']:,.0f} resets/s, {mean['steps']:,.0f} steps/s mixed, {mean['clicks']:,.0f} without searches, "
        f"{mean['offered']:,.0f} with actions and prompt text; {mean['queries']:,.0f} queries/s"
    )


def prepare(data: str, cache: str) -> dict[str, float]:
    from alignopsd_trl.environments.webshop.engine.index import open_catalogue

    start = time.process_time()
    catalogue = open_catalogue(data, cache_dir=cache, progress=False)
    seconds = time.process_time() - start
    postings = sum(catalogue[name].nbytes for name in ("posting_documents", "posting_counts", "posting_start"))
    return {"seconds": seconds, "mib": catalogue.nbytes / 2**20, "postings": postings / 2**20}


def measure(data: str, cache: str, episodes: int, queries: int, seed: int) -> dict[str, float]:
    start, before = time.process_time(), memory("VmRSS")
    from alignopsd_trl.environments.webshop.environment import open_shops
    from alignopsd_trl.environments.webshop.options import WebShopOptions

    found: dict[str, float] = {"import": time.process_time() - start}
    found["before"] = memory("VmRSS")
    start = time.process_time()
    shop = open_shops(WebShopOptions(data_dir=data, cache_dir=cache)).of_seed(None)
    found |= {"open": time.process_time() - start, "opened": memory("VmRSS")}
    generator = random.Random(seed)
    found["resets"] = rate(lambda: open_session(shop, generator), 1000)
    for name, searching, offering in (("steps", True, False), ("clicks", False, False), ("offered", True, True)):
        found[name] = played(shop, generator, episodes, searching, offering)
    texts = [" ".join(shop.goals[generator.randrange(len(shop.goals))]["name"].split()[:6]) for _ in range(queries)]
    start = time.process_time()
    for text in texts:
        shop.catalogue.ranking(text)
    found["queries"] = queries / (time.process_time() - start)
    return {**found, "after": memory("VmRSS"), "private": memory("RssAnon"), "start": before}


def memory(field: str) -> float:
    """MiB of a field of the process's status (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return float("nan")


def rate(call: Any, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return count / (time.process_time() - start)


def open_session(shop: Any, generator: random.Random) -> Any:
    from alignopsd_trl.environments.webshop.engine.session import ShopSession

    index = shop.goals.draw(generator)
    session = ShopSession(shop, shop.goal(index), generator)
    assert session.text
    return session


def played(shop: Any, generator: random.Random, episodes: int, searching: bool, offering: bool) -> float:
    """Steps per CPU second; without ``searching``, of the steps that show no results."""
    steps, spent = 0, 0.0
    for _ in range(episodes):
        session = open_session(shop, generator)
        for action in script(session, generator):
            start = time.process_time()
            session.step(action)
            observe(session, offering)
            if searching or session.kind.value != "results":
                spent += time.process_time() - start
                steps += 1
    return steps / spent


def observe(session: Any, offering: bool) -> None:
    from alignopsd_trl.environments.webshop.environment import prompt_actions, prompt_observation

    text = session.text
    if offering:
        prompt_observation(text, session.goal["instruction_text"])
        prompt_actions(session)


def script(session: Any, generator: random.Random) -> Iterator[str]:
    """The actions of an episode, each chosen on the page that the one before has led to."""
    yield f"search[{' '.join(session.goal['name'].lower().split()[:6])}]"
    yield "click[next >]"
    yield "click[< prev]"
    links = [name for name in session.clickables if name.startswith("b0")]
    yield f"click[{generator.choice(links)}]"
    options = [piece.text for piece in session.pieces if piece.name]
    for value in generator.sample(options, min(2, len(options))):
        yield f"click[{value}]"
    yield "click[description]"
    yield "click[< prev]"
    yield "click[buy now]"


if __name__ == "__main__":
    main()
