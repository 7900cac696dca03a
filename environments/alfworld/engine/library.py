"""Private copies of the planner's shared library, one for each live game.

``libdownward.so`` keeps its state in globals, so two games that are played at once need two copies of it, and a copy
can't be unloaded safely. Of the installed 34 MB only the 1 MB that is loaded is copied, into memory where the system
has anonymous files. Copies are reused.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # ELF64, little endian
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOADABLE = 1

_idle: list[ctypes.CDLL] = []
_descriptors: list[int] = []  # kept open: the loader tells copies apart by their path, which holds the number


def acquire() -> ctypes.CDLL:
    """Returns a copy of the planner's library that nothing else uses."""
    return _idle.pop() if _idle else _load()


def release(library: ctypes.CDLL) -> None:
    """Gives a copy back. The caller must not use it any more."""
    _idle.append(library)


def _load() -> ctypes.CDLL:
    import fast_downward
    from fast_downward.interface import DOWNWARD_LIB_PATH

    image = loadable_part(str(DOWNWARD_LIB_PATH))
    if image is None or not hasattr(os, "memfd_create"):
        return fast_downward.load_lib()
    descriptor = os.memfd_create("libdownward")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(image)
    _descriptors.append(descriptor)
    return _declare(ctypes.CDLL(f"/proc/self/fd/{descriptor}"))


@lru_cache(maxsize=1)
def loadable_part(path: str) -> bytes | None:
    """Returns an ELF library up to the end of its loadable segments, without debug symbols and section headers. None
    for a file that is not a 64-bit little-endian ELF."""
    data = Path(path).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    header = list(_HEADER.unpack_from(data))
    offset, size, count = header[5], header[9], header[10]
    segments = [_SEGMENT.unpack_from(data, offset + size * index) for index in range(count)]
    end = max(segment[2] + segment[5] for segment in segments if segment[0] == _LOADABLE)
    header[6], header[12], header[13] = 0, 0, 0  # no section headers
    return _HEADER.pack(*header) + data[_HEADER.size : end]


def _declare(library: ctypes.CDLL) -> Any:
    from fast_downward import Atom, Operator

    signatures = {
        "load_sas": ([ctypes.c_char_p], None),
        "get_applicable_operators_count": ([], ctypes.c_int),
        "get_applicable_operators": ([ctypes.POINTER(Operator)], None),
        "get_state_size": ([], ctypes.c_int),
        "get_state": ([ctypes.POINTER(Atom)], None),
        "apply_operator": ([ctypes.c_int, ctypes.POINTER(Atom)], ctypes.c_int),
        "check_goal": ([], ctypes.c_bool),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library
