"""One error model for all commands. A message names the place, the value and what to do; the status says whose turn it
is.

1. What a user did: `UserError`, status 2. Until the first episode any library's errors are of this kind (`setup`), and
   so is whatever the code of a task raises, but in a run under way, which it ends.
2. What ended a run: `RunEnded`, status 1, and what others raise with a remedy of their own: `EnvironmentsDown`,
   `OSError`, `ImportError`, a lack of memory, a lost process. Signals: 128 plus their number.
3. What we did wrong: any other error, status 1; the calls go to a file that a report can hold.
4. What is kept: a note of the class `Kept` on the error, which a traceback shows too.

`alignopsd_trl.common.reporting` makes the message and the status of a command from it.
"""

from __future__ import annotations

import errno
import signal
import sys
import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from alignopsd_trl.environments.base import EnvironmentsDown

WRONG, STOPPED, INTERRUPTED = 2, 1, 130
"""Exit statuses: the command can't run; the run had to stop; Ctrl-C."""

RESUMES = " with --resume_from_checkpoint True"
"""The argument that makes a recipe's command resume."""


class UserError(ValueError):
    """Raised for what a user can mend: an argument, a file, a folder, a task. The message is shown whole."""

    status: ClassVar[int] = WRONG


class SetupError(UserError):
    """Raised by `setup` in place of another error, its ``__cause__``."""


class RunEnded(RuntimeError):
    """Raised when a run can't go on. ``damaged`` is the name of a checkpoint that turned out to be damaged."""

    status: ClassVar[int] = STOPPED
    resumable: ClassVar[bool] = True  # by the same command

    def __init__(self, message: str = "", damaged: str = ""):
        super().__init__(message)
        self.damaged = damaged


class Terminated(BaseException):
    """Raised for a signal that ends the process. A launcher sends one to the remaining processes when one has ended."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Kept(str):
    """A note on an error (`BaseException.add_note`): what is kept of the work, and how to go on."""


def kept(error: BaseException) -> Kept | None:
    return next((note for note in getattr(error, "__notes__", ()) if isinstance(note, Kept)), None)


@contextmanager
def setup() -> Generator[None]:
    """Makes errors before the first episode a `SetupError`, which the user can mend."""
    try:
        yield
    except (UserError, RunEnded, BrokenPipeError):
        raise
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        if wants_memory(error) or is_loss(error):
            raise
        raise SetupError(reason(error)) from error


def reason(error: BaseException) -> str:
    """Returns the text of an error; that of a file begins with its path."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def status_of(error: BaseException) -> int | None:
    """Returns the exit status of a command that an error ends; `None` for an error that nobody foresaw."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, UserError | RunEnded | Terminated):
        return error.status
    if wants_memory(error) or is_loss(error) or isinstance(error, EnvironmentsDown | OSError | ImportError):
        return STOPPED
    if raised_by_a_task(error):
        return WRONG if kept(error) is None else STOPPED
    return None


def wants_memory(error: BaseException) -> bool:
    """Returns whether the error is a lack of memory, on the host or on a GPU."""
    if isinstance(error, MemoryError) or _is_of(error, "torch", "OutOfMemoryError"):
        return True
    said = type(error) is RuntimeError and "can't allocate memory" in str(error)
    return said or getattr(error, "errno", None) == errno.ENOMEM


def is_loss(error: BaseException) -> bool:
    """Returns whether an error of the process group means that another process is gone. gloo has no class for it."""
    told = type(error) is RuntimeError and "gloo" in str(error)
    return told or _is_of(error, "torch.distributed", "DistError")


def _is_of(error: BaseException, module: str, name: str) -> bool:
    """Returns whether an error is of a class of torch, without its slow import: who has not loaded it raises none."""
    return isinstance(error, getattr(sys.modules.get(module), name, ()))


_OURS, _OWN = str(Path(__file__).parents[1]), (__file__, str(Path(__file__).with_name("reporting.py")))
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_COMPILED = (".pyx", ".pxi")  # of libraries, whose frames name no path


def raised_by_a_task(error: BaseException) -> str:
    """Returns the line of the user's code that raised an error, where this package called that code; else empty."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame.filename.startswith(_OURS) and frame.filename not in _OWN for frame in frames]
    for place, frame in reversed(list(enumerate(frames))):
        if ours[place]:
            return ""
        if not frame.filename.startswith((*_INSTALLED, _OURS, "<frozen")) and not frame.filename.endswith(_COMPILED):
            return f"{frame.filename}, line {frame.lineno}" if any(ours[:place]) else ""
    return ""
