"""Ends a command with a few lines and a status by `alignopsd_trl.common.errors`: on an error (the problem, its place
and the remedy), on a signal, when another process of its run is lost, or when the reader of its output leaves."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator
from datetime import timedelta
from types import FrameType
from typing import Any

from alignopsd_trl.common import errors
from alignopsd_trl.common.command import TRACEBACK
from alignopsd_trl.common.errors import RESUMES, STOPPED, WRONG, Terminated, UserError
from alignopsd_trl.common.files import in_units

STOPS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process, beside Ctrl-C: from a launcher, a scheduler, or a terminal that closes."""

_PATIENCE = timedelta(seconds=5)
_LINES, _WIDE = 3, 1000  # shown of a message that others wrote
_MEMORY = (
    "not enough memory{}; lower --per_device_train_batch_size, --max_completion_length or --tokens_per_forward "
    "(--batch_size of evaluate), or take a smaller --model"
)


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """Makes `STOPS` raise `Terminated`, once, in this process alone; children forked in between die of the signal. An
    ignored signal, such as SIGHUP under ``nohup``, stays ignored."""
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:
            os.kill(os.getpid(), number)
        raise Terminated(number)

    with handled(end):
        yield


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Installs a handler for those `STOPS` that are not ignored, and restores the old handlers at the end. Does nothing
    in a thread beside the main one, where Python handles no signals."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOPS} if main else {}
    heard = [number for number in before if before[number] != signal.SIG_IGN]
    for number in heard:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


@contextlib.contextmanager
def ends_with_its_reader() -> Generator[None]:
    """Ends the process quietly, with status 0, once the reader of its output has left."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        out = select.poll()
        out.register(sys.stdout.fileno(), 0)
        if not out.poll(0):
            raise  # the error of another pipe
        _to_nowhere(sys.stdout)
        raise SystemExit(0) from None


@contextlib.contextmanager
def outlives_its_readers(told: str) -> Generator[None]:
    """Discards the output after its reader has left; prints a note once on standard error, if that is still read."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(before[0], lambda: print(told, file=sys.stderr)), _Stream(before[1], lambda: None)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Stream:
    """A stream whose writes raise no error when nobody reads it."""

    def __init__(self, stream: Any, leaves: Callable[[], None]):
        self._stream, self._leaves = stream, leaves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except BrokenPipeError:
            _to_nowhere(self._stream)
            self._leaves()
        except ValueError:  # a task's code has closed it
            if not self._stream.closed:
                raise
            self._stream = open(os.devnull, "w")
            self._leaves()


def _to_nowhere(stream: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def reported(name: str, quietly: bool = True, resumes: str | None = RESUMES) -> Generator[None]:
    """Ends the process with a message and a status, in place of a traceback.

    Args:
        quietly: if false, errors are raised as they are. With `TRACEBACK` on the command line all but signals are.
        resumes: argument with which the same command resumes; `None` for a command that begins anew.
    """
    if not quietly:
        yield
        return
    ends: tuple[type[BaseException], ...] = (KeyboardInterrupt, Terminated)
    ends += () if TRACEBACK in sys.argv else (Exception,)
    with handled(lambda *ignored: None):  # the launcher's signals wait until the message is out
        try:
            with ends_with_its_reader(), terminable():
                _check_locale()
                yield
        except ends as error:
            status = errors.status_of(error)
            with contextlib.suppress(OSError):  # a closed terminal shows no message
                if status is None or _speaks(error):
                    told = _unexpected(error) if status is None else _message(error, status, resumes)
                    print(f"{name}: {told}", file=sys.stderr, flush=True)
            raise SystemExit(STOPPED if status is None else status) from None


def _check_locale() -> None:
    """Raises `UserError` for a path that this locale can't read; output replaces letters that it can't print."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")
    with contextlib.suppress(FileNotFoundError):  # the working folder is gone
        for word in (*sys.argv[1:], os.getcwd()):
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                told = os.fsencode(word).decode(errors="replace")
                coding = sys.getfilesystemencoding()
                raise UserError(f"{told!r} can't be read as {coding}, this locale's; set PYTHONUTF8=1")


def _speaks(error: BaseException) -> bool:
    """Returns whether this process reports an error: the first of its machine, or after a loss the first of the run to
    ask, by a count in the launcher's store. If the store died with its process, every remaining process reports."""
    if not (errors.is_loss(error) or isinstance(error, Terminated)):
        return os.environ.get("LOCAL_RANK", "0") == "0"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from torch.distributed import DistNetworkError, TCPStore

    try:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=_PATIENCE)
        return store.add("alignopsd_trl/said", 1) == 1
    except DistNetworkError:
        return True


def _unexpected(error: BaseException) -> str:
    """Returns the message of an error that nobody foresaw, whose calls go to a file that a report can hold."""
    descriptor, place = tempfile.mkstemp(prefix="alignopsd-", suffix=".txt")  # a name that nobody can foresee
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(traceback.format_exception(error)))
    said = f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return f"{said}\nThe calls are in {place}; please report them."


def _message(error: BaseException, status: int, resumes: str | None) -> str:
    goes_on = errors.kept(error) or ("" if resumes is None else f"the same command{resumes} goes on")
    if isinstance(error, KeyboardInterrupt):
        return "; ".join(filter(None, ["stopped by Ctrl-C", goes_on]))
    if errors.wants_memory(error):
        asked = re.search(r"allocate (?:(?P<bytes>\d+) bytes|[\d.]+ \w+)", str(error))
        size = asked and (in_units(int(asked["bytes"])) if asked["bytes"] else asked[0].removeprefix("allocate "))
        return _MEMORY.format(f" ({size} were asked for)" if size else "")
    if isinstance(error, Terminated) or errors.is_loss(error):
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        lost = "another process of this run ended, or its launcher" if several else f"stopped by {error}"
        return "; ".join(filter(None, [lost, goes_on]))
    source = error.__cause__ if isinstance(error, errors.SetupError) and error.__cause__ else error
    most = None if source is error and isinstance(error, UserError) else _LINES
    lines = errors.reason(error).strip().splitlines()[:most]
    text = "\n".join(line[:_WIDE] for line in lines) or type(source).__name__
    if place := errors.raised_by_a_task(source):
        text = f"code of the task raised {type(source).__name__}: {text} ({place}); {TRACEBACK} shows the calls"
    if status == WRONG or not goes_on or not getattr(error, "resumable", True):
        return text
    return f"{text}\n{goes_on[0].upper()}{goes_on[1:]}"
