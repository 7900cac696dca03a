from __future__ import annotations

import os
import subprocess
import sys

import pytest

from alignopsd_trl.common.cores import threads, wait_shortly


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 8),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"}, 8),
        ({"OMP_NUM_THREADS": "3", "ACCELERATE_MIXED_PRECISION": "no"}, 3),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"}, 4),
        ({"LOCAL_WORLD_SIZE": "16"}, 1),
        ({"OMP_NUM_THREADS": "many"}, 8),
    ],
)
def test_threads_are_the_users_or_a_share_of_the_cores(environment: dict[str, str], expected: int) -> None:
    assert threads(environment, 8) == expected


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "active"}])
def test_threads_wait_shortly_unless_the_user_says_how(own: dict[str, str]) -> None:
    environment: dict[str, str] = {}
    wait_shortly(environment)
    assert int(environment["GOMP_SPINCOUNT"]) < 100_000
    given = dict(own)
    wait_shortly(given)
    assert given == own


@pytest.mark.full
@pytest.mark.parametrize("before", ["", "import torch; "])
def test_waiting_is_set_before_torch_reads_it_or_the_user_is_told(before: str) -> None:
    program = f"""
{before}import sys
import alignopsd_trl, os
print(os.environ["GOMP_SPINCOUNT"], "torch" in sys.modules)
from alignopsd_trl.common.cores import TOO_LATE
print(TOO_LATE)
"""
    free = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=free)
    assert done.stdout.split() == ["10000", *[str(bool(before))] * 2], done.stderr


@pytest.mark.full
def test_a_program_keeps_the_threads_that_it_set() -> None:
    program = """
import torch
torch.set_num_threads(1)
from alignopsd_trl.common.cores import use_machine, use_what_is_left
assert use_what_is_left() == "" and torch.get_num_threads() == 1
use_machine(3)
use_what_is_left()
print(torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_freed_memory_is_used_again() -> None:
    """Page faults of blocks that are made and freed over and over, in processes with and without the settings."""
    program = """
import resource, sys
from alignopsd_trl.common.cores import keep_memory
kept = keep_memory() if sys.argv[1] == "keep" else None
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    blocks = [bytearray(b"x") * (1 << 20) for _ in range(8)]
    del blocks
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = {}
    for mode in ("keep", "leave"):
        done = subprocess.run([sys.executable, "-c", program, mode], capture_output=True, text=True, check=True)
        kept, count = done.stdout.split()
        faults[mode] = int(count)
        if mode == "keep" and kept == "False":
            pytest.skip("no glibc here, or its settings were given by hand")
    assert faults["keep"] < faults["leave"] / 4
