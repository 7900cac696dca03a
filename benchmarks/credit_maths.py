"""How long the credit maths take, and how they grow with the number of tasks.

Times `AlignOPSD.assign` with a teacher that answers from memory, so that what is measured is everything between the
teacher's answers and the token advantages: correspondence, rectification, spans, credit, metrics and trace. Each size
runs in a process of its own, so that the peak memory is that size's (minus what importing torch takes, given beside).

    python benchmarks/credit_maths.py                     # 1/4, 1/2, 1 and 2 times 16 tasks x 8 rollouts x 50 turns
    python benchmarks/credit_maths.py --output credit.json --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from alignopsd_trl.methods import get_method
from alignopsd_trl.turns import Thought, Turn, TurnBatch

ROLLOUTS, TURNS, STATES = 8, 50, 12  # siblings, turns a rollout, distinct decisions a task
PARTS = ("before", "after")  # the teacher's scores


class MemoryTeacher:
    """Has every answer ready and notes when `score` was asked, which splits the chain in two."""

    def __init__(self, thoughts: list[Thought], embeddings: torch.Tensor, views: torch.Tensor):
        self._thoughts, self._embeddings, self._views = thoughts, embeddings, views
        self.asked = (0.0, 0.0)
        self.pairs = 0

    def thoughts(self, batch: TurnBatch) -> list[Thought]:
        return self._thoughts

    def encode(self, texts: list[str]) -> torch.Tensor:
        return self._embeddings[: len(texts)]

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.asked = clocks()
        self.pairs = len(source) - len(batch)
        return self._views[: len(source)]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return values


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def make_batch(tasks: int, length: int, width: int, seed: int = 0) -> tuple[TurnBatch, MemoryTeacher]:
    """Siblings that walk through the same decisions at different speeds: three sources for nearly every turn."""
    draw = torch.Generator().manual_seed(seed)
    count = tasks * ROLLOUTS * TURNS
    task = torch.arange(tasks).repeat_interleave(ROLLOUTS * TURNS)
    rollout = torch.arange(tasks * ROLLOUTS).repeat_interleave(TURNS)
    number = torch.arange(TURNS).repeat(tasks * ROLLOUTS)
    state = (torch.rand(tasks * ROLLOUTS, TURNS, generator=draw) < STATES / TURNS).cumsum(1).clamp_max(STATES - 1)
    centre = torch.randn(tasks * STATES, width, generator=draw)[task * STATES + state.flatten()]
    # Thinking of student and teacher, each text its own, then two actions shared by all: the order of `encode`.
    thinking = centre.repeat(2, 1) + 0.3 * torch.randn(2 * count, width, generator=draw)
    embeddings = torch.cat([thinking, torch.ones(1, width)])
    thoughts = [[Thought(f"{side} {row}", "look") for row in range(count)] for side in ("teacher", "student")]
    student = -torch.rand(count, length, generator=draw)
    views = -torch.rand(4 * count, length, generator=draw)
    mask = torch.arange(length) < torch.randint(length // 4, length + 1, (count, 1), generator=draw)
    batch = TurnBatch(
        turns=[
            Turn(int(at), "", [], [], [], "", thought, thought.action, True, "")
            for at, thought in zip(number, thoughts[1], strict=True)
        ],
        task=task,
        rollout=rollout,
        turn=number,
        response_ids=torch.zeros(count, 1, dtype=torch.int64),
        policy_mask=mask,
        reward=(torch.rand(tasks * ROLLOUTS, generator=draw) < 0.5).float().repeat_interleave(TURNS),
        action_valid=torch.ones(count, dtype=torch.bool),
        student_log_probs=student,
    )
    return batch, MemoryTeacher(thoughts[0], embeddings, views)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(tasks: int, length: int, width: int, threads: int, repeats: int, allocation: str) -> dict[str, Any]:
    torch.set_num_threads(threads)
    from alignopsd_trl.config import AlignOPSDConfig

    config = AlignOPSDConfig(output_dir=os.devnull, report_to="none", use_cpu=True, bf16=False, allocation=allocation)
    method, imported = get_method("align_opsd")(config), peak_mib()
    batch, teacher = make_batch(tasks, length, width)
    inputs, runs = peak_mib(), []
    for _ in range(repeats):
        start = clocks()
        credit = method.assign(batch, teacher, step=0)
        end = clocks()
        runs.append(
            {
                name: {"wall": until[0] - since[0], "cpu": until[1] - since[1]}
                for name, since, until in zip(PARTS, (start, teacher.asked), (teacher.asked, end), strict=True)
            }
        )
    best = min(runs, key=lambda run: sum(part["cpu"] for part in run.values()))
    return {
        "tasks": tasks,
        "turns": len(batch),
        "pairs": teacher.pairs,
        "seconds": best,
        "peak_mib": {"imports": imported, "with_inputs": inputs, "total": peak_mib()},
        "weight_std": credit.metrics["credit/weight_std"],
    }


def in_own_process(arguments: argparse.Namespace, tasks: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", str(tasks)]
    for name in ("length", "width", "threads", "repeats", "allocation"):
        command += [f"--{name}", str(getattr(arguments, name))]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"measuring {tasks} tasks failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table(title="Credit maths: CPU seconds before and after the teacher's scores")
    for name in ("tasks", "turns", "pairs", *PARTS, "wall", "ms/task", "MiB", "inputs", "imports"):
        shown.add_column(name, justify="right")
    for result in results:
        parts, memory = [result["seconds"][name] for name in PARTS], result["peak_mib"]
        shown.add_row(
            *(str(result[name]) for name in ("tasks", "turns", "pairs")),
            *(f"{part['cpu']:.2f}" for part in parts),
            f"{sum(part['wall'] for part in parts):.2f}",
            f"{1000 * sum(part['cpu'] for part in parts) / result['tasks']:.0f}",
            f"{memory['total']:.0f}",
            f"{memory['with_inputs'] - memory['imports']:.0f}",
            f"{memory['imports']:.0f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--length", type=int, default=512, help="response tokens of a turn")
    parser.add_argument("--width", type=int, default=1024, help="width of an embedding")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--allocation", default="span", choices=("span", "turn", "token", "random"))
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, *(getattr(arguments, name) for name in SETTINGS))))
        return
    console = Console()
    results = [in_own_process(arguments, tasks) for tasks in track(arguments.tasks, "Measuring", console=console)]
    console.print(table(results))
    if arguments.output:
        machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        settings = {name: getattr(arguments, name) for name in SETTINGS}
        arguments.output.write_text(json.dumps({**machine, **settings, "results": results}, indent=2) + "\n")


SETTINGS = ("length", "width", "threads", "repeats", "allocation")

if __name__ == "__main__":
    main()
