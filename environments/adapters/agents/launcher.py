"""Runs one program apart from the machine's other processes, and ends all that it started. A script of its own: what it
does to itself, no thread of a trainer could undo.

The first line of its input is what to run. When its input ends, or the program does, every process of the program is
killed, whatever group or session it went to and whatever it ignores. Then it writes the exit status and the output's
end.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import psutil

LONGEST = 1 << 13  # bytes of output that are kept: as JSON they fit into a pipe
LARGEST = 1 << 30  # bytes of a file
MOST = 512  # processes at once
NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
BIND, PRIVATE = 0x1000, 0x40000 | 0x4000
DIES_WITH_PARENT, BOUND_CAPABILITY, ADOPTS = 1, 24, 36  # of prctl
PTRACE, ADMIN = 19, 21  # capabilities that undo mounts and look into other processes


def call(name: str, *given: Any) -> None:
    """Calls a function of the C library. Raises `OSError` with its name if it fails."""
    given = tuple(one.encode() if isinstance(one, str) else one for one in given)
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*given):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def separate() -> None:
    """Gives the processes that come process numbers of their own; without root in a namespace of users of its own."""
    user, group = os.getuid(), os.getgid()
    call("unshare", NEWPID | (NEWUSER if user else 0))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def mount(asked: dict[str, Any]) -> None:
    """Lets an episode's folders stand at the paths that all siblings have, and covers what is none of its business."""
    call("unshare", NEWNS)
    call("mount", None, "/", None, PRIVATE, None)
    for place, folder in asked["at"].items():
        call("mount", folder, place, None, BIND, None)
    for path in filter(os.path.exists, asked["covered"]):
        folder = os.path.isdir(path)
        call("mount", *(("tmpfs", path, "tmpfs", 0, "size=4k") if folder else ("/dev/null", path, None, BIND, None)))
    call("mount", "proc", "/proc", "proc", 0, None)


def become(asked: dict[str, Any], output: int) -> None:
    """Becomes the program."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if asked["apart"] and not os.getuid():
        for one in (PTRACE, ADMIN):
            call("prctl", BOUND_CAPABILITY, one, 0, 0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(asked["folder"])
    os.execvpe(asked["command"][0], asked["command"], asked["env"])


def first_process(asked: dict[str, Any], output: int) -> int:
    """Is process 1 of a namespace, with which all others end, until the program ends."""
    call("prctl", DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    mount(asked)
    program = forked(become, asked, output)
    while True:
        found, status = os.wait()
        if found == program:
            return shown(status)


def forked(act: Any, asked: dict[str, Any], output: int) -> int:
    """Returns the number of a child that does something and then ends. What goes wrong there is its output."""
    if child := os.fork():
        return child
    try:
        os._exit(act(asked, output) or 0)
    except (OSError, ValueError) as error:
        os.write(output, f"{asked['command'][0]}: {error}".encode())
    os._exit(127)


def shown(status: int) -> int:
    """Returns an exit status as shells show it: 128 and the signal that killed a process."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def watch(child: int, output: int) -> tuple[int | None, bytes]:
    """Returns status and output's end of a program; no status if it has not ended by itself."""
    end, look, heard = b"", 0.0, [0, output]
    while True:
        ready, _, _ = select.select(heard, [], [], 0.05)
        if output in ready:
            end = (end + (read := os.read(output, 1 << 16)))[-LONGEST:]
            heard = heard if read else [0]  # all who could write have closed it
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or (0 in ready and not os.read(0, 1)):
            return shown(status) if ended else None, end
        if (now := time.monotonic()) > look:
            if (count := len(psutil.Process().children(recursive=True))) > MOST:
                return None, end + f"\n{count} processes at once: the program was killed".encode()
            look = now + max(0.2, 20 * (time.monotonic() - now))  # on a machine with many processes a look is dear


def end_all() -> None:
    """Kills what is left, until nothing is. Whose parent has ended is this process's child."""
    while left := psutil.Process().children(recursive=True):
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def rest_of(output: int) -> bytes:
    """Returns what the program's pipe still holds, with all its writers gone."""
    rest = b""
    while found := os.read(output, 1 << 16):
        rest = (rest + found)[-LONGEST:]
    return rest


def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline())
    output, into = os.pipe()
    if asked["apart"]:
        separate()
    elif sys.platform == "linux":
        call("prctl", ADOPTS, 1, 0, 0, 0)
    child = forked(first_process if asked["apart"] else become, asked, into)
    os.close(into)
    status, end = watch(child, output)
    end_all()
    told = (end + rest_of(output))[-LONGEST:].decode(errors="replace")
    print(json.dumps({"status": status, "output": told}))


if __name__ == "__main__":
    main()
