"""A run owns its output folder: one process at a time writes there, and all files belong to one run.

``run.json`` identifies the run: its id, configuration, checksums of code and weights, and one entry a session.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from alignopsd_trl.common.errors import RESUMES, Kept, RunEnded
from alignopsd_trl.common.files import json_line, plain, read_json, sweep_partials, write_json, write_text
from alignopsd_trl.runs import files, state
from alignopsd_trl.runs.files import COMPLETIONS, RECORDS, SCHEMAS, TRAJECTORIES
from alignopsd_trl.runs.owned import NOTES, foreign, note, notes
from alignopsd_trl.runs.provenance import FREE_ON_RESUME, code_checksum, differences, shown, versions
from alignopsd_trl.runs.state import MARK, RUN_FILE, RunFolderError, has_ended, read_run, update_of, whole_checkpoints

_FOLDERS = (TRAJECTORIES, COMPLETIONS)
TRAIN = "train"
"""The command that writes a run, in the notes of its folder."""

Say = Callable[[str], None]  # takes a line for the user


@dataclass
class RunFolder:
    """An output folder that this run has claimed."""

    path: Path
    id: str  # of the run; the same after a resume, in every record and in every result
    resume: str | None = None
    sessions: int = 1  # number of starts of the run
    writes: bool = True  # whether this process writes (rank 0 does)
    unlock: Callable[[], None] = field(default=lambda: None, repr=False)

    @classmethod
    def claim(
        cls,
        path: str | Path,
        configuration: Mapping[str, Any],
        resume: str | bool | None = None,
        overwrite: bool = False,
        say: Say = print,
        aside: bool = False,
    ) -> RunFolder:
        """Locks the folder and makes it this run's. Raises `RunFolderError` if another process uses it, or if it holds
        a run that this one does not continue.

        Args:
            configuration: flat mapping of the settings that decide what the run computes.
            resume: as ``resume_from_checkpoint``; with ``True``, a run without a whole checkpoint starts anew.
            say: called with each line for the user.
            aside: move a finished run to a folder beside this one.
        """
        path, configuration, resumes = Path(path), plain(configuration), wanted(resume)
        held = state.lock(path)
        try:
            if strange := strangers(path):
                raise RunFolderError(strange)
            if overwrite and not resumes:
                clear(path)
            elif aside and not resumes and has_ended(path, read_run(path)):
                say(f"{path} held a finished run, which is in {set_aside(path)} now")
            left = look(path)
            if summary := state.broken_off(path, ours=True):
                say(summary)
            checkpoint, run = left.checkpoint(configuration, resume, say), left.run if resumes else None
            if resumes:
                _tell_of_unfinished(path, checkpoint, say)
            else:
                clear(path)
            run = run or {"schema": SCHEMAS[RUN_FILE], "id": uuid.uuid4().hex[:12], "sessions": []}
            run.setdefault("configuration", configuration)
            session = _session(checkpoint)
            _tell_of_changes(run, configuration, session, say)
            run |= {"configuration": configuration, "sessions": [*run["sessions"], session]}
            sweep_partials(path)
            write_json(path / RUN_FILE, run)
            note([path / RUN_FILE], TRAIN)
        except BaseException:
            held.release()
            raise
        resume_from = str(checkpoint) if checkpoint else None
        return cls(path, run["id"], resume_from, len(run["sessions"]), unlock=held.release)

    @property
    def update(self) -> int:
        """Returns the update at which the run resumes."""
        return int(self._state.get("global_step", 0))

    @property
    def _state(self) -> dict[str, Any]:
        """Returns the trainer state that transformers saved in the checkpoint."""
        return read_json(Path(self.resume) / MARK) if self.resume else {}

    def end(self) -> None:
        """Notes in ``run.json`` that the run has made all its updates."""
        self._note(state.ENDED)

    def release(self) -> None:
        """Unlocks the folder and notes it; a session without this note broke off (`broken_off`)."""
        with contextlib.suppress(OSError):  # a full disk may be the reason for the end
            self._note(state.RELEASED)
        self.unlock()

    def _note(self, what: str) -> None:
        if self.writes and (run := read_json(self.path / RUN_FILE)):
            run["sessions"][-1][what] = _now()
            write_json(self.path / RUN_FILE, run)

    def forget_after(self, update: int, say: Say = print) -> None:
        """Removes what was written after the update at which the run resumes; the run writes it again. Log lines that
        are missing up to this update come from the checkpoint, which has them all."""
        if not self.writes:
            return
        for name, first in ((TRAJECTORIES, update), (COMPLETIONS, update + 1)):  # TRL counts a table's own update
            for file in sorted((self.path / name).glob("*")):
                if not (ours := RECORDS.fullmatch(file.name)):
                    say(f"{file} is no file of this run; it stays")
                elif int(ours["step"]) >= first:
                    file.unlink()
        self._tell_of_records(update, say)
        self._mend_log(update, say)

    def _tell_of_records(self, update: int, say: Say) -> None:
        """Says which files of trajectories are not those of the checkpoint's list."""
        listed = state.load_state(self.resume).get("records") or {}
        found = files.record_sizes(self.path, update)
        names = {
            "is gone": listed.keys() - found.keys(),
            "is not as it was saved": {name for name in listed.keys() & found.keys() if listed[name] != found[name]},
            "was not written by this run": found.keys() - listed.keys() if listed else (),
        }
        for told, some in names.items():
            if some:
                more = f" (and {len(some) - 1} more)" if len(some) > 1 else ""
                remedy = "move it away" if told.startswith("was") else "bring it back, or the run goes on without it"
                say(f"{self.path / TRAJECTORIES / min(some)} {told}{more}; {remedy}")

    def _mend_log(self, update: int, say: Say) -> None:
        """Cuts the log to an update; lines that are not those of the checkpoint's log are replaced by these."""
        log = self.path / files.LOG_FILE
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        kept = [line for line in text.splitlines() if _update_of(line) <= update]
        known = [one for one in self._state.get("log_history", ()) if "train_runtime" not in one]
        history = [json_line({"step": one["step"], **one}) for one in known]
        if told := _foreign_lines([*map(json.loads, kept)], [*map(json.loads, history)], update):
            kept = history
            say(f"{log} {told}, now written anew")
        if text or kept:
            write_text(log, "".join(line + "\n" for line in kept))


def _foreign_lines(lines: Sequence[Any], history: Sequence[Any], update: int) -> str:
    """Returns how a log's lines up to an update differ from a checkpoint's history; empty if they don't, or if there is
    no history. An evaluation after the checkpoint has a line of its own."""
    known, later = lines[: len(history)], lines[len(history) :]
    if not history or (known == history and all(one["step"] == update and one not in history for one in later)):
        return ""
    if lost := max(len(history) - len(lines), 0):
        return f"was cut short: {lost} of {len(history)} lines up to update {update} were gone"
    return f"held other lines up to update {update} than this run logged (doubled, out of order or changed)"


@dataclass(frozen=True)
class Left:
    """The content of a folder before a run begins."""

    path: Path
    run: dict[str, Any] | None
    checkpoints: tuple[Path, ...]
    anything: bool

    def checkpoint(self, configuration: Mapping[str, Any], resume: str | bool | None, say: Say) -> Path | None:
        """Returns the undamaged checkpoint from which a run of this configuration goes on; `None` if it starts. Raises
        `RunFolderError` if it may do neither here."""
        if problem := self._refusal(configuration, resume):
            raise RunFolderError(problem)
        newest = resume in (True, "True", "true")
        if not wanted(resume) or (newest and not self.checkpoints):
            return None
        run, given = self.run["id"] if self.run else None, Path(str(resume)).absolute()
        if not newest and given.resolve().parent != self.path.resolve():
            raise RunFolderError(
                f"resume_from_checkpoint={resume!r} is no checkpoint in output_dir={str(self.path)!r}; a run goes on "
                "in its own folder"
            )
        if not newest and not state.is_whole(given):
            raise RunFolderError(
                f"resume_from_checkpoint={resume!r} has no readable {MARK} (no such folder, or the run was stopped "
                "while writing it); use True for the last whole checkpoint"
            )
        problems = list[str]()
        for one in [*([] if newest else [given]), *reversed(self.checkpoints)]:
            if problem := state.damage(one, run):
                problems.append(problem)
            elif not problems or newest:
                for problem in problems:
                    say(f"{problem}; {one.name} is whole: the run goes on there")
                return one
            else:
                raise RunFolderError(f"{problems[0]}; {one.name} is whole: resume_from_checkpoint={one} goes on there")
        raise RunFolderError(f"{problems[0]}; no other is whole: overwrite_output_dir=True starts again")

    def _refusal(self, configuration: Mapping[str, Any], resume: str | bool | None) -> str | None:
        """Returns the reason why a run of this configuration may not use the folder; `None` if it may."""
        if self.run is None and (self.path / RUN_FILE).exists():
            return (
                f"{self.path / RUN_FILE} is damaged, and says no more which run this is; bring it back, choose another "
                "output_dir, or overwrite_output_dir=True removes the run"
            )
        if self.run and (stated := self.run.get("schema", 1)) != SCHEMAS[RUN_FILE]:
            return f"{self.path / RUN_FILE} is of schema {stated!r}, of another version; choose another output_dir"
        if self.run and wanted(resume):
            return self._refusal_of_resume(self.run, configuration)
        if not self.anything:
            return None
        if self.run is None:
            return (
                f"{self.path} holds files of a run that left no {RUN_FILE}, which says with what settings; bring it "
                "back, choose another output_dir, or overwrite_output_dir=True to remove them"
            )
        own = ("resume_from_checkpoint", "plan", "output_dir")  # the folder may have moved
        if changed := differences(self.run["configuration"], configuration, own):
            return (
                f"{self.path} holds another run: {shown(changed)}. Choose another output_dir, or "
                f"overwrite_output_dir=True to remove that run"
            )
        if not self.checkpoints and not (self.path / state.RESULTS_FILE).is_file():
            return None
        reached = "finished" if has_ended(self.path, self.run) else f"stopped after {self.checkpoints[-1].name}"
        return (
            f"{self.path} holds this very run ({reached}): resume_from_checkpoint=True goes on with "
            f"what is missing, overwrite_output_dir=True removes it and starts again"
        )

    def _refusal_of_resume(self, run: Mapping[str, Any], configuration: Mapping[str, Any]) -> str | None:
        before = run["sessions"][-1]["processes"]
        if self.checkpoints and before != _processes():
            return (
                f"{self.path} holds a run of {before} processes, whose random states this launch of {_processes()} "
                f"can't take up; launch it on {before} processes, or choose another output_dir"
            )
        newer = configuration.keys() ^ run["configuration"].keys()  # a setting that newer code added is not a change
        changed = differences(run["configuration"], configuration, FREE_ON_RESUME | newer)
        if not changed or not self.anything:
            return None
        return (
            f"{self.path} holds a run with other settings, which can't be resumed with these: "
            f"{shown(changed)}. Set them as they were, or choose another output_dir"
        )


def look(path: Path) -> Left:
    """Returns the content of a folder; changes nothing."""
    run = read_run(path)
    anything = any(any(path.glob(pattern)) for pattern in files.MARKS)
    anything |= any(RECORDS.fullmatch(one.name) for name in _FOLDERS for one in path.glob(f"{name}/*"))
    return Left(path, run, whole_checkpoints(path), anything)


def strangers(path: Path) -> str:
    """Returns a message about files in a run's places that no run wrote there; empty without any."""
    folders = [path / name for name in _FOLDERS if os.path.lexists(path / name)]
    found = [*foreign(files.found(path, "replaced"), TRAIN), *(one for one in folders if not one.is_dir())]
    left = files.found(path, "goes")
    if RUN_FILE not in notes(path):
        of_nobody = [one for one in left if one.is_file() or any(one.iterdir())]
        found = [] if read_run(path) else [*found, *of_nobody]
    records = [one for name in _FOLDERS for one in sorted(path.glob(f"{name}/*.parquet"))]
    found += [one for one in (*left, *records) if one.suffix and one.is_dir() and one.name != RUN_FILE]
    remedy = "nothing is replaced: move it away, or choose another output_dir"
    return f"{found[0]} is there, and is not as a run of this folder wrote it; {remedy}" if found else ""


def clear(path: Path) -> None:
    """Removes the files of a run; other files of the folder stay."""
    _take_away(files.found(path, "goes"), _remove)


def _remove(found: Path) -> None:
    """Removes a file, or the files of a folder that the run wrote, and the folder once it is empty."""
    of_records, listed = found.name in _FOLDERS, read_json(found / state.LIST_FILE)
    if found.is_dir() and not of_records and not any((found / name).exists() for name in files.OF_CHECKPOINTS):
        return
    for file in [one for one in found.rglob("*") if not one.is_dir()] if found.is_dir() else [found]:
        name = file.relative_to(found).as_posix()
        if RECORDS.fullmatch(name) if of_records else not listed or name in (*listed, state.LIST_FILE):
            file.unlink()
    for folder in sorted([one for one in (found, *found.rglob("*")) if one.is_dir()], reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def set_aside(path: Path) -> Path:
    """Moves the files of a run into a new folder beside its own, under the first free number."""
    whole = path.resolve()
    place = next(one for one in (whole.with_name(f"{whole.name}.{number}") for number in count(1)) if not one.exists())
    place.mkdir()
    if (whole / NOTES).is_file():
        shutil.copy(whole / NOTES, place)
    _take_away(files.found(whole, "replaced", "goes"), lambda found: shutil.move(found, place / found.name))
    return place


def _take_away(several: Sequence[Path], take: Callable[[Path], object]) -> None:
    for found in several:
        take(found)
        if found.name in _FOLDERS:
            found.mkdir(exist_ok=True)  # TRL has already made the run's own, with the trainer


def claim_together(path: str | Path, *given: Any, **options: Any) -> RunFolder:
    """Calls `RunFolder.claim` on rank 0; all ranks return the same folder or raise the same error."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list, gather_object

    from alignopsd_trl.common.process_group import together

    def claim() -> RunFolder | None:
        return RunFolder.claim(path, *given, **options) if PartialState().is_main_process else None

    run = together(claim, RunFolderError, lambda problem: gather_object([problem]))
    (facts,) = broadcast_object_list([run and (run.id, run.resume, run.sessions)])
    return run or RunFolder(Path(path), *facts, writes=False)


@contextlib.contextmanager
def claimed(run: RunFolder) -> Generator[RunFolder]:
    """Unlocks the folder at the end, also after an error, to which it adds what is `Kept`: the last whole checkpoint
    but the one that the error found `damaged`."""
    try:
        yield run
    except BaseException as error:
        damaged = error.damaged if isinstance(error, RunEnded) else ""
        whole = [one.name for one in whole_checkpoints(run.path) if one.name != damaged]
        goes_on = f"{whole[-1]} is whole: the same command{RESUMES} goes on there" if whole else ""
        error.add_note(Kept(goes_on or "no checkpoint was saved yet: the same command starts again"))
        raise
    finally:
        run.release()


def wanted(resume: str | bool | None) -> bool:
    """Returns whether a ``resume_from_checkpoint`` asks to resume."""
    return resume not in (None, False, "", "False", "false")


def _tell_of_unfinished(path: Path, checkpoint: Path | None, say: Say) -> None:
    begins = update_of(checkpoint) if checkpoint else -1
    if later := [one for one in state.checkpoints(path) if update_of(one) > begins and not state.is_whole(one)]:
        whole = f"{checkpoint.name} is the last whole one" if checkpoint else "no other is whole: the run starts again"
        say(f"{later[-1].name} was not written to its end ({MARK}); {whole}")


def _tell_of_changes(
    run: Mapping[str, Any], configuration: Mapping[str, Any], session: Mapping[str, Any], say: Say
) -> None:
    if changed := differences(run["configuration"], configuration, ("resume_from_checkpoint", "output_dir")):
        say(f"resumed with changes: {shown(changed)}")
    last = run["sessions"][-1] if run["sessions"] else session
    before, now = ({"code": one.get("code"), **one.get("versions", {})} for one in (last, session))
    if other := differences(before, now):
        say(f"resumed with other code than the session before: {shown(other)}")


def _session(checkpoint: Path | None) -> dict[str, Any]:
    return {
        "started": _now(),
        "from": checkpoint.name if checkpoint else None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "processes": _processes(),
        "code": code_checksum(),
        "versions": versions(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _update_of(line: str) -> float:
    """Returns the update number of a line of the log; infinity for a line that a kill cut short."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return float("inf")
