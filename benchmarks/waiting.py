"""What it costs that threads wait for each other while something else runs on the machine, by how they wait.

    python benchmarks/waiting.py --output waiting.json

A layer of a tiny policy runs on as many threads as there are cores, alone and beside as many busy processes, with GNU
OpenMP's own waiting and with that of `alignopsd_trl.common.cores.wait_shortly`; each time in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from alignopsd_trl.common.cores import available_cores, wait_shortly

LAYER = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
rows, up, down = torch.randn(512, 128), torch.randn(128, 512), torch.randn(512, 128)

def layer():
    return torch.softmax(torch.nn.functional.silu(rows @ up) @ down, -1).sum()

layer()
start = time.perf_counter()
for _ in range(int(sys.argv[2])):
    layer()
print(time.perf_counter() - start)
"""
BUSY = "while True: pass"


def seconds(cores: int, calls: int, environment: dict[str, str]) -> float:
    """Wall seconds of the calls in a process of its own."""
    command = [sys.executable, "-c", LAYER, str(cores), str(calls)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def measure(cores: int, calls: int, repeats: int) -> dict[str, dict[str, float]]:
    """Medians by what else runs and by how threads wait."""
    plain = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    short = dict(plain)
    wait_shortly(short)
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for others, count in (("alone", 0), ("beside busy processes", cores)):
            busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
            try:
                for name, environment in (("own", plain), ("short", short)):
                    found.setdefault(others, {}).setdefault(name, []).append(seconds(cores, calls, environment))
            finally:
                for process in busy:
                    process.kill()
    return {others: {name: statistics.median(each) for name, each in by.items()} for others, by in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    cores = available_cores()
    content = {"cores": cores, "calls": given.calls, "seconds": measure(cores, given.calls, given.repeats)}
    given.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
