"""The one error model: which class has which status, whatever ends a command, and what is kept."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch

import alignopsd_trl
from alignopsd_trl.common.errors import STOPPED, WRONG, Kept, RunEnded, SetupError, UserError, kept, setup, status_of
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.environments.base import EnvironmentsDown
from alignopsd_trl.environments.searchqa.engine.retrieval import RetrieverDown

CAUGHT = {"SetupError", "Terminated", "RequestFailed", "NotKept", "_Fault", "_Filled"}
"""Classes that no command ends with under their own name: they are caught inside, or part of the model."""

APART = ("data", "recipes", "environments", "templates")
DEFINES = re.compile(r"^class \w+\(.*(Error|Exception|Ended|Stopped|Down)\):", re.MULTILINE)


def _classes() -> list[type[BaseException]]:
    root = Path(alignopsd_trl.__file__).parent
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root).with_suffix("").parts
        if not {*place} & {*APART} and DEFINES.search(file.read_text(encoding="utf-8")):
            importlib.import_module(".".join(("alignopsd_trl", *place)))
    found, new = set[type[BaseException]](), {Exception, BaseException}
    while new := {one for kind in new for one in kind.__subclasses__()} - found:
        found |= new
    ours = (one for one in found if one.__module__.startswith("alignopsd_trl."))
    return sorted((one for one in ours if ".environments." not in one.__module__), key=lambda one: one.__name__)


def test_each_class_is_one_that_a_user_mends_or_that_ends_a_run() -> None:
    classes = [one for one in _classes() if one.__name__ not in CAUGHT]
    assert {"RunFolderError", "RunStopped", "SkillBankError", "PushFailed", "StudyError"} <= {
        one.__name__ for one in classes
    }
    for kind in classes:
        assert issubclass(kind, UserError) != issubclass(kind, RunEnded), (
            f"{kind.__name__} is neither a UserError nor a RunEnded (common/errors.py): a command would call it a bug"
        )
        error = kind("what to do")
        assert status_of(error) == (WRONG if issubclass(kind, UserError) else STOPPED) and str(error) == "what to do"
        assert type(pickle.loads(pickle.dumps(error))) is kind, "processes send it to one another"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EnvironmentsDown("the shop"), STOPPED),
        (RetrieverDown("the server"), STOPPED),
        (OSError(28, "no room"), STOPPED),
        (ImportError("pip install x"), STOPPED),
        (torch.distributed.DistNetworkError("gone"), STOPPED),
        (RuntimeError("[gloo/transport] gone"), STOPPED),
        (ZeroDivisionError("a bug"), None),
        (ValueError("a bug"), None),
    ],
)
def test_what_others_raise_ends_a_run_or_is_a_bug(error: Exception, status: int | None) -> None:
    assert status_of(error) == status


def test_before_the_first_episode_any_error_is_the_users() -> None:
    for error in (ValueError("a"), TypeError("b"), ImportError("c"), RuntimeError("d"), EnvironmentsDown("e")):
        with pytest.raises(SetupError, match=str(error)) as told, setup():
            raise error
        assert told.value.__cause__ is error and status_of(told.value) == WRONG
    for passed in (RunEnded("a"), UserError("b"), torch.OutOfMemoryError("c"), BrokenPipeError(), KeyError("d")):
        with pytest.raises(type(passed)) as found, setup():
            raise passed
        assert found.value is passed
    with pytest.raises(SetupError, match="^/x: No such file$"), setup():
        raise FileNotFoundError(2, "No such file", "/x")


def _told(error: BaseException, capsys: pytest.CaptureFixture[str], resumes: str | None) -> str:
    with pytest.raises(SystemExit), reported("x", resumes=resumes):
        raise error
    return capsys.readouterr().err


def test_what_is_kept_is_said_after_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["x"])
    for error, resumes, words in (
        (RunEnded("why"), "", "x: why\nThe same command goes on\n"),
        (RunEnded("why"), None, "x: why\n"),
        (UserError("why"), "", "x: why\n"),
        (KeyboardInterrupt(), None, "x: stopped by Ctrl-C\n"),
    ):
        assert _told(error, capsys, resumes) == words
    for error, words in (
        (RunEnded("why"), "x: why\nA folder is whole\n"),
        (OSError("why"), "x: why\nA folder is whole\n"),
    ):
        error.add_note("of somebody else")
        error.add_note(Kept("a folder is whole"))
        assert kept(error) == "a folder is whole" and _told(error, capsys, "") == words
