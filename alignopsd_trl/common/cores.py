"""Settings for a run on the CPU: the number of threads, short waits between them, and memory that stays allocated."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping, MutableMapping

LAUNCHERS = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")
SPINS = "10000"  # turns of libgomp's waiting loop, some ten microseconds
KEPT = {-1: 1 << 30, -2: 64 << 20, -3: 32 << 20}  # glibc's trim threshold, top padding and mmap threshold


def threads(environment: Mapping[str, str], cores: int) -> int:
    """Returns the threads of one process: OMP_NUM_THREADS, else its share of the cores. ``accelerate launch`` and
    torchrun set OMP_NUM_THREADS to 1 by themselves; from them a 1 does not count (``--threads 1`` does)."""
    given = environment.get("OMP_NUM_THREADS", "")
    launched = any(name in environment for name in LAUNCHERS)
    if given.isdigit() and int(given) > 0 and not (given == "1" and launched):
        return int(given)
    return max(cores // int(environment.get("LOCAL_WORLD_SIZE", "1")), 1)


def wait_shortly(environment: MutableMapping[str, str]) -> None:
    """Makes threads that wait for each other between two operations sleep soon. By default GNU OpenMP spins for a
    millisecond; a spinning thread keeps its core from the awaited one as soon as anything else runs on the machine.
    Call it before torch is imported, which loads the library that reads the variable. The user's own value stays."""
    if not _chosen_by_user(environment):
        environment["GOMP_SPINCOUNT"] = SPINS


def _chosen_by_user(environment: Mapping[str, str]) -> bool:
    return bool({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(environment))


TOO_LATE = "torch" in sys.modules and not _chosen_by_user(os.environ)
"""Whether torch was imported before this package, which imports this module first."""


_chosen = False


def use_machine(wanted: int | None = None) -> str:
    """Sets the number of threads, ``wanted`` or by the rule of `threads`, and makes glibc keep freed memory for the
    next sub-chunk instead of returning it to the system page by page. Returns the settings, as a line for the log."""
    global _chosen
    import torch

    _chosen, cores = True, available_cores()
    count = wanted or threads(os.environ, cores)
    torch.set_num_threads(count)
    line = f"CPU: {count} thread{'s' * (count > 1)} a process, {cores} core{'s' * (cores > 1)}"
    return f"{line}, memory kept between sub-chunks" if keep_memory() else line


def use_what_is_left() -> str:
    """Calls `use_machine` for a trainer in a Python program. Threads that the program set for torch are the upper
    limit, unless a launcher set them. Does nothing if the process has chosen before. Returns a note for the user, or an
    empty text."""
    if _chosen:
        return ""
    import torch

    launched = any(name in os.environ for name in LAUNCHERS)
    use_machine(None if launched else min(torch.get_num_threads(), threads(os.environ, available_cores())))
    if not TOO_LATE or torch.get_num_threads() == 1:
        return ""
    return "slow where anything else runs: import alignopsd_trl before torch, or set GOMP_SPINCOUNT=10000"


def available_cores() -> int:
    """Returns the number of cores that the process may use: the least of machine, affinity and container quota."""
    import joblib

    return joblib.cpu_count()


def keep_memory() -> bool:
    """Makes glibc keep freed memory, but for a user's own MALLOC_... variable; returns whether it took the settings."""
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(parameter, value) == 1 for parameter, value in KEPT.items()])
