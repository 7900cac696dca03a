"""Lends the global random generators to one episode at a time.

Much code draws from `random`, `numpy.random` and torch without a generator of its own. Where the environments of a
process take turns, each episode has these generators to itself: seeded from its seed, and in the state in which its
last call left them. Afterwards the process gets its own states back, so that training draws the same numbers whatever
is played. torch's generator is lent only while the main thread waits: it may sample beside episodes that wait for
nobody.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy
from numpy.random import mtrand

_TURN = threading.RLock()  # one batch at a time has the generators
_lends_torch = True


@contextmanager
def kept() -> Generator[None]:
    """Gives the process its own states back when the context closes. Other threads that lend wait for that."""
    global _lends_torch
    with _TURN:
        before, _lends_torch = _lends_torch, threading.current_thread() is threading.main_thread()
        restore = _restoring()
        try:
            yield
        finally:
            restore()
            _lends_torch = before


def _restoring() -> Callable[[], None]:
    """Returns what puts the present states back."""
    own, bits = random.getstate(), mtrand.get_bit_generator()
    legacy = numpy.random.get_state(legacy=False)
    torch, devices = _cpu(), _devices()
    drawn = None if torch is None else torch.get_state()

    def restore() -> None:
        random.setstate(own)
        mtrand.set_bit_generator(bits)
        if legacy["has_gauss"]:  # the half-used pair of normal numbers is lost where a bit generator is set
            numpy.random.set_state(legacy)
        if torch is not None:
            torch.set_state(drawn)
        for generator, seed, offset, state in devices:
            if generator.initial_seed() != seed or generator.get_offset() < offset:
                generator.set_state(state)

    return restore


class RandomStream:
    """The states of one episode."""

    def __init__(self, seed: object = None) -> None:
        self.begin(seed)
        self._numpy: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> RandomStream:
        """Returns one that draws the same and on its own, without a walk through the 625 numbers of a state, which
        nobody changes in place: a search copies its episode for each move."""
        other = copy.copy(self)
        other._numpy = copy.deepcopy(self._numpy, memo)
        return other

    @contextmanager
    def lent(self) -> Generator[None]:
        """Gives the generators to a game for a block of its calls, also where nobody else keeps games apart: all that
        it draws follows from the seed and its own calls."""
        restore = _restoring()
        self.install()
        try:
            yield
        finally:
            if mtrand.get_bit_generator() is self._numpy:  # else this call was given up, and another episode has them
                self.keep()
                restore()

    def begin(self, seed: object) -> None:
        """Forgets the states; the next `install` seeds them."""
        self._seed = zlib.crc32(repr(seed).encode())
        self._python: Any = None
        self._torch: Any = None

    def install(self) -> None:
        """Puts the states in place. `keep` must follow, unless the call between them never returns."""
        if self._numpy is None:
            self._numpy = numpy.random.MT19937(0)
        mtrand.set_bit_generator(self._numpy)
        torch = _cpu()
        if self._python is None:
            random.seed(self._seed)
            numpy.random.seed(self._seed)
        else:
            random.setstate(self._python)
        if torch is not None and self._torch is None:
            torch.manual_seed(self._seed)
        elif torch is not None:
            torch.set_state(self._torch)

    def around(self, call: Callable[[], Any]) -> Any:
        """Makes a call with the states in place, and returns its result or raises its error."""
        self.install()
        try:
            return call()
        finally:
            self.keep()

    def keep(self) -> None:
        """Takes the states as a call left them."""
        self._python = random.getstate()
        torch = _cpu()
        self._torch = None if torch is None else torch.get_state()


def _cpu() -> Any:
    """Returns torch's generator of the CPU; `None` unless it is lent, and something has imported torch."""
    return getattr(sys.modules.get("torch"), "default_generator", None) if _lends_torch else None


def _devices() -> list[tuple[Any, int, int, Any]]:
    """Returns CUDA's generators with their seeds, offsets and states. An environment that calls `torch.manual_seed`
    seeds them too; what a policy draws from them meanwhile stays drawn."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not _lends_torch or not cuda.is_initialized():
        return []
    return [(one, one.initial_seed(), one.get_offset(), one.get_state()) for one in cuda.default_generators]
