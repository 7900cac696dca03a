"""Runs the programs of episodes apart from each other: one path for all siblings, a home of its own, few variables."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil
from huggingface_hub import constants as hub

logger = logging.getLogger(__name__)
PASSED = ("PATH", "LANG", "TERM")  # variables of this process that a program gets
ROOT = Path(tempfile.gettempdir(), f"alignopsd-{getattr(os, 'getuid', int)()}")  # Windows has no such numbers
SECRETS = (
    ".aws .azure .config/gcloud .config/gh .docker .git-credentials .gnupg .kaggle .kube .netrc .npmrc .pypirc .ssh"
)
SECRETS += (
    " .claude.json .claude/.credentials.json .codex/auth.json .local/share/opencode/auth.json .pi/agent/auth.json"
)
"""Under the home of this process, and covered for programs where namespaces are allowed."""
LAUNCHER = Path(__file__).with_name("launcher.py")
ENDING = 10.0  # seconds in which a launcher kills everything


class Ran(NamedTuple):
    """How a program ended: its exit status, `None` if it was killed, and the end of its output."""

    status: int | None
    output: str


class Launched(subprocess.Popen):
    """The launcher of a program."""

    ended = False  # by somebody else than the one who waits for it

    def end(self) -> None:
        """Ends the program with all that it started."""
        self.ended = True
        self.hang_up()

    def hang_up(self) -> None:
        assert self.stdin is not None
        with suppress(OSError):
            self.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.wait(ENDING)
        self.kill()


class Place:
    """The folders of an episode.

    Args:
        apart: whether its programs get namespaces of their own.

    Attributes:
        folder, home: where they are.
        paths: where its programs find them.
        moved: real paths with those that the policy is shown in their place, where a program has the real ones.
    """

    def __init__(self, base: Path, apart: bool):
        self.folder, self.home, self._apart = base / "task", base / "home", apart
        (self.home / "tmp").mkdir(parents=True)
        self.folder.mkdir()
        real = {"folder": str(self.folder), "home": str(self.home)}
        shown = {"folder": str(ROOT / "task"), "home": str(ROOT / "home")}
        self.paths = shown if apart else real
        self.moved = [] if apart else [(real[name], shown[name]) for name in real]
        self._at = {shown[name]: real[name] for name in real}

    def run(self, command: Sequence[str], env: Mapping[str, str], until: Callable[[], float]) -> Ran:
        """Runs a program to its end, or kills it.

        Args:
            until: when it is killed at the latest, by the clock `time.monotonic`; asked again and again.

        Raises:
            RuntimeError: if it can't be launched, or the episode ended it.
        """
        folder, home = self.paths["folder"], self.paths["home"]
        own = {name: os.environ[name] for name in PASSED if name in os.environ}
        own |= {"HOME": home, "TMPDIR": f"{home}/tmp"}
        asked = {"command": [*command], "env": {**own, **env}, "folder": folder, "apart": self._apart, "at": self._at}
        asked["covered"] = [str(ROOT / "episodes"), hub.HF_TOKEN_PATH, hub.HF_STORED_TOKENS_PATH]
        asked["covered"] += [str(Path.home() / one) for one in SECRETS.split()]
        process = Launched([sys.executable, "-I", LAUNCHER], stdin=-1, stdout=-1, stderr=-1, env=own)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with suppress(BrokenPipeError):  # it says why
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
        while process.poll() is None and time.monotonic() < until():
            time.sleep(0.05)
        process.hang_up()
        told, problem = process.stdout.read(), process.stderr.read().decode(errors="replace")
        process.stdout.close()
        process.stderr.close()
        if not told:
            self._end_orphans()
        if process.ended or not told:
            raise RuntimeError("the episode ended first" if process.ended else f"the launcher died: {problem[-400:]}")
        return Ran(**json.loads(told))

    def _end_orphans(self) -> None:
        """Kills what a launcher has left that was killed itself, as a program without namespaces can do."""
        for one in psutil.process_iter(["environ"]):
            if str(self.home) in (one.info["environ"] or {}).get("HOME", ""):
                with suppress(psutil.Error):
                    one.kill()


@contextmanager
def place(apart: bool) -> Generator[Place]:
    """Makes the folders of an episode, and removes them."""
    for name in ("task", "home", "episodes"):
        (ROOT / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    if ROOT.stat().st_uid != os.getuid():
        raise PermissionError(f"{ROOT} is another user's; set TMPDIR to a folder of your own")
    base = Path(tempfile.mkdtemp(dir=ROOT / "episodes"))
    try:
        yield Place(base, apart)
    finally:  # by programs that know folders of any depth and any mode
        subprocess.run(["chmod", "-R", "u+rwx", base], capture_output=True)
        removed = subprocess.run(["rm", "-rf", base], capture_output=True, text=True)
        if removed.returncode:
            logger.warning(f"the folder of an episode stays: {removed.stderr[-400:]}")


@cache
def why_together() -> str:
    """Returns why programs can't have namespaces of their own here; empty: they can. Said once."""
    try:
        with place(apart=True) as found:
            until = time.monotonic() + 2 * ENDING
            ran = found.run(["true"], {}, lambda: until)
        why = "" if ran.status == 0 else ran.output
    except RuntimeError as error:
        why = str(error)
    if why:
        logger.warning(
            f"programs share this machine's paths and processes ({why.strip().rpartition(chr(10))[2]}): the folders of "
            "episodes are shown to the policy under one path, but it can find the others, and read this process's "
            "variables in /proc; allow namespaces (in a container: --privileged, or CAP_SYS_ADMIN)"
        )
    return why
