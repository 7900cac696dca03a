"""An agent from a command line."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from numbers import Real
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from alignopsd_trl.environments.adapters.agents import apart
from alignopsd_trl.environments.adapters.agents.apart import ENDING, Place, Ran, place
from alignopsd_trl.environments.adapters.agents.refusal import POLICYS
from alignopsd_trl.environments.base import Ending

if TYPE_CHECKING:
    from alignopsd_trl.environments.adapters.agents.client import Client

tests_pass = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
"""The reward of a `Program` whose folder has tests: 1 if pytest passes."""
Files = Mapping[str, str | bytes] | str | Path
FAULTS = {128 + number for number in (4, 6, 7, 8, 9, 11)}  # signals of a program that broke
NAME = re.compile(r"\{([A-Za-z_]\w*)\}")
LAST = 30.0  # seconds in which a program ends after its last turn


class Program:
    """An agent from a command line, for `AgentEnvironment`.

    Each episode runs it in a folder with the task's files, with a home of its own and few variables: ``PATH``,
    ``LANG``, ``TERM``, and the policy's address and key under the names that the clients of OpenAI and Anthropic read.
    All siblings see one path. All processes that it starts end with it.

    In ``command``, ``home``, ``env`` and a reward's command ``{url}``, ``{key}``, ``{folder}``, ``{home}`` and the
    names of the row's columns in braces are replaced.

    Args:
        command (`Sequence[str]`):
            Without a shell.
        reward (`Sequence[str] | Callable`):
            What the folder deserves in the end: a command, run in it as the program is, for 1 if its status is 0 and
            the episode is won, else 0 (`tests_pass`); or ``reward(folder)``, ``reward(folder, row)`` with a number, or
            `True` or `False` for won and lost.
        files (`Callable[[dict], Mapping[str, str | bytes] | str | Path]`, *optional*):
            A row -> its files by their names, or a folder to copy. By default there are none.
        home (`Mapping[str, str]`, *optional*):
            Files of the program's home by their names, such as its settings.
        env (`Mapping[str, str]`, *optional*):
            More variables.
        time_limit (`float`, *optional*, defaults to `600.0`):
            Seconds after which it is killed, its start included; the folder is rewarded as it is then. The reward's
            command has as many. `AgentEnvironment` waits for its requests as long.

    Raises:
        TypeError, ValueError: for arguments that are none of these.
        ImportError: for `tests_pass` without pytest.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        reward: Sequence[str] | Callable[..., float | bool],
        files: Callable[[Mapping[str, Any]], Files] | None = None,
        home: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        time_limit: float = 600.0,
    ):
        for name, given in (("command", command), *(() if callable(reward) else (("reward", reward),))):
            if isinstance(given, str) or not given or not all(isinstance(one, str) for one in given):
                raise TypeError(f"{name}={given!r:.80} must be a list of texts, such as ['codex', 'exec', '{{task}}']")
        if files is not None and not callable(files):
            raise TypeError(f"files={files!r:.80} must be a function of a row")
        if not (isinstance(time_limit, int | float) and time_limit > 0):
            raise ValueError(f"time_limit={time_limit!r} must be a number of seconds")
        if reward is tests_pass and find_spec("pytest") is None:
            raise ImportError("reward=tests_pass needs pytest: pip install pytest")
        self.command, self.reward, self._files = [*command], reward, files
        self._home, self._env, self.time_limit = dict(home or {}), dict(env or {}), time_limit
        self.longest = 2 * (time_limit + ENDING)  # seconds until an episode's reward is known
        self.__name__ = PurePosixPath(command[0]).name

    def __call__(self, row: Mapping[str, Any], client: Client) -> Ending:
        """Plays an episode.

        Raises:
            RuntimeError: if the program breaks, or ends without a turn.
        """
        with place(not apart.why_together()) as found:
            write_files(found.folder, self._files(row) if self._files else {})
            values = {**row, "url": client.url, "key": client.key, **found.paths}
            write_files(found.home, {name: filled(text, values) for name, text in self._home.items()})
            client.line.moved = found.moved
            ran = found.run([filled(one, values) for one in self.command], self._variables(values), self._until(client))
            self._check(ran, client)
            return self._rewarded(found, row, values, ran)

    def _variables(self, values: Mapping[str, Any]) -> dict[str, str]:
        url, key = values["url"], values["key"]
        own = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}
        own |= {"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}
        return own | {name: filled(text, values) for name, text in self._env.items()}

    def _until(self, client: Client) -> Callable[[], float]:
        """Returns when the program is killed: at its time limit, or soon after the end of its turns."""
        ends = [time.monotonic() + self.time_limit]

        def until() -> float:
            if client.line.over and len(ends) == 1:
                ends.append(time.monotonic() + LAST)
            return min(ends)

        return until

    def _check(self, ran: Ran, client: Client) -> None:
        """Raises `RuntimeError` where the program is to blame for its end, and not the policy."""
        refused = client.line.refused
        told = f"{self.__name__} {'was killed' if ran.status is None else f'ended with status {ran.status}'}"
        told += f"; its output ends: {ran.output[-600:]!r}"
        if not client.line.turns:
            raise RuntimeError(f"without a turn {told}")
        if ran.status in FAULTS or (ran.status and refused is not None and refused.code not in POLICYS):
            raise RuntimeError(told)

    def _rewarded(self, found: Place, row: Mapping[str, Any], values: Mapping[str, Any], ran: Ran) -> Ending:
        info: dict[str, Any] = {"status": ran.status, "output": ran.output}
        if callable(self.reward):
            both = len(inspect.signature(self.reward).parameters) > 1
            value = self.reward(found.folder, row) if both else self.reward(found.folder)
        else:
            ends = time.monotonic() + self.time_limit
            tested = found.run([filled(one, values) for one in self.reward], {}, lambda: ends)
            value, info["tested"] = tested.status == 0, tested.output
        if not isinstance(value, Real):
            raise TypeError(f"reward(folder) returned {value!r:.60}; return a number, True or False")
        return Ending(float(value), value if isinstance(value, bool) else None, float(value), info=info)


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Returns a text with the names in braces replaced that are known.

    Raises:
        ValueError: if it is one such name alone, which is not known.
    """
    if (alone := NAME.fullmatch(text)) and alone[1] not in values:
        raise ValueError(f"{text} is no column of the row; there are {', '.join(map(str, values))}")
    return NAME.sub(lambda found: str(values.get(found[1], found[0])), text)


def write_files(folder: Path, files: Files) -> None:
    """Writes files by their names, or copies a folder.

    Raises:
        ValueError: for a name outside the folder.
    """
    if not isinstance(files, Mapping):
        shutil.copytree(files, folder, symlinks=True, dirs_exist_ok=True)
        return
    for name, text in files.items():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise ValueError(f"the file {name!r} is outside the folder; give a name such as 'src/main.py'")
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
