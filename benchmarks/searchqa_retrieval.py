"""How fast Search-QA searches, and what it holds in memory.

Synthetic passages of 100 words are drawn from a vocabulary with Zipf frequencies (the most frequent words stand for
content words: stop words are dropped by the analyser and cost nothing); queries are eight words of a passage, as a
policy would take them from what it has read. Every size runs in a process of its own. Then the environment without a
model: the scripted player on the closed world, all questions side by side.

Usage:

    OMP_NUM_THREADS=1 python benchmarks/searchqa_retrieval.py [--sizes 10000 100000 1000000] [--queries 512]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.searchqa import BM25Retriever, Corpus, suite

sys.path.insert(0, str(Path(__file__).parents[1]))
from assets.worlds.closed_world_player import ScriptedPlayer  # noqa: E402

WORDS = 400_000
LENGTH = 100
MEBIBYTE = 2.0**20


def write_corpus(path: Path, passages: int) -> list[str]:
    """Writes the passages; returns 4,096 queries."""
    generator = np.random.default_rng(0)
    weights = 1.0 / (np.arange(WORDS) + 100.0)  # the 100 most frequent words are stop words, hence absent
    shares = np.cumsum(weights / weights.sum())
    queries = []
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, passages, 10_000):
            rows = np.searchsorted(shares, generator.random((min(10_000, passages - start), LENGTH)))
            for number, row in enumerate(rows, start):
                words = [f"w{word}q" for word in row.tolist()]
                file.write(json.dumps({"id": str(number), "contents": f'"Title {number}"\n{" ".join(words)}'}) + "\n")
                if len(queries) < 4096:
                    queries.append(" ".join(words[:8]))
    return queries


def cpu(call: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def resident() -> tuple[float, float]:
    """(private, all) resident memory in MiB; the difference is file pages that processes share."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / MEBIBYTE, memory.rss / MEBIBYTE


def measure(passages: int, count: int) -> dict[str, float]:
    """Building, loading and searching one corpus."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        queries = write_corpus(path, passages)[:count]
        index = Path(folder) / "bm25"
        build, peak = apart(build_index, path, index)
        before = resident()[0]
        loaded: list[BM25Retriever] = []
        load = cpu(lambda: loaded.append(BM25Retriever(Corpus(path), index)))
        retriever = loaded[0]
        retriever.search(queries, 3)  # the first pass reads the index from the disk
        singles = cpu(lambda: [retriever.search([query], 3) for query in queries])
        batches = cpu(lambda: [retriever.search(queries[i : i + 256], 3) for i in range(0, len(queries), 256)])
        private, everything = resident()
        return {
            "passages": passages,
            "build s": build,
            "build peak MiB": peak,
            "index MiB": sum(file.stat().st_size for file in index.iterdir()) / MEBIBYTE,
            "load s": load,
            "private MiB": private - before,
            "resident MiB": everything,
            "queries/s, one": len(queries) / singles,
            "queries/s, 256": len(queries) / batches,
        }


def build_index(path: Path, index: Path) -> tuple[float, float]:
    seconds = cpu(lambda: BM25Retriever(Corpus(path), index))
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a call in a fresh process, so that memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def play(copies: int) -> dict[str, float]:
    """The closed world's test questions, ``copies`` rollouts each, by the scripted player."""
    world = suite()
    rows = [row for row in world.panel("test").rows for _ in range(copies)]
    batch, player = open_batch(world.factory, len(rows)), ScriptedPlayer()
    history: list[tuple[Record, ...]] = [() for _ in rows]
    live, turns, environment = list(range(len(rows))), 0, 0.0
    started = time.process_time()
    openings = batch.reset(live, rows)
    environment += time.process_time() - started
    while live:
        views = [View(openings[slot].task_text, "", (), history[slot], len(history[slot])) for slot in live]
        responses = [player.respond(view) for view in views]
        started = time.process_time()
        for view in views:
            batch.prompt.render(view)
        actions = [batch.project(response).action for response in responses]
        steps = batch.step(live, actions)
        environment += time.process_time() - started
        turns += len(live)
        for slot, action, step in zip(live, actions, steps, strict=True):
            history[slot] += (Record(len(history[slot]) + 1, "", action, step.observation),)
        live = [slot for slot, step in zip(live, steps, strict=True) if not step.done]
    speed = {"episodes/s": len(rows) / environment, "turns/s": turns / environment}
    return {"episodes": len(rows), "turns": turns, **speed}


def show(title: str, rows: list[dict[str, float]]) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in row.values()))
    Console(width=160).print(table)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options.add_argument("--queries", type=int, default=512)
    given = options.parse_args()
    rows = []
    for size in given.sizes:
        rows.append(apart(measure, size, given.queries))
        print(json.dumps(rows[-1]), flush=True)
    show("BM25, CPU seconds on one core", rows)
    show("environment without a model (reset, render, project, step with BM25), CPU seconds", [play(1), play(8)])


if __name__ == "__main__":
    main()
