"""One push of a finished run to the Hub: model, tokenizer, results and card; trajectories as a data set of their own.

A push that fails costs nothing of the run: everything lies in its folder already, and the error names the command that
pushes again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from alignopsd_trl.runs.files import read_json
from alignopsd_trl.sharing.dataset_card import write_dataset

KEPT_HOME = (
    "trajectories/*",
    "completions/*",
    "checkpoint-*",
    "checkpoint-*/*",
    "run.json",
    "run.lock",
    "log.jsonl",
    ".*",
    "_*",
)
"""What never goes into the model's repository."""


class PushFailed(RuntimeError):
    """A push did not get through; the run's folder is whole and can be pushed again."""


def push_run(folder: str | os.PathLike, repository: str, token: str | None = None, private: bool | None = None) -> str:
    """Uploads a run's model, tokenizer, results and card as one commit.

    Args:
        folder (`str` or path):
            Output folder of a finished run.
        repository (`str`):
            Id of the model's repository; made if it isn't there.
        token (`str`, *optional*):
            Of the Hub; the stored login by default.
        private (`bool`, *optional*):
            Of a repository that is made.

    Returns:
        Address of the commit.

    Raises:
        FileNotFoundError: if the run isn't finished.
        PushFailed: if the Hub refused or could not be reached.
    """
    folder = _finished(folder)
    again = f"alignopsd push {folder} {repository}"
    return _upload(folder, repository, "model", token, private, again, ignore=list(KEPT_HOME))


def push_trajectories(
    folder: str | os.PathLike, repository: str, token: str | None = None, private: bool | None = None
) -> str:
    """Uploads a run's trajectories as a data set with the configurations ``turns`` and ``episodes``, as one commit.

    Args, Returns, Raises: as `push_run`; ``repository`` is a data set's.
    """
    folder = _finished(folder)
    again = f"alignopsd push {folder} --trajectories {repository}"
    with tempfile.TemporaryDirectory() as made:
        write_dataset(folder, Path(made))
        return _upload(Path(made), repository, "dataset", token, private, again)


def _finished(folder: str | os.PathLike) -> Path:
    folder = Path(folder)
    if read_json(folder / "results.json") is None:
        raise FileNotFoundError(f"no finished run in {folder}: it has no results.json; resume the run first")
    return folder


def _upload(
    folder: Path,
    repository: str,
    kind: str,
    token: str | None,
    private: bool | None,
    again: str,
    ignore: list[str] | None = None,
) -> str:
    api = HfApi(token=token)

    def upload() -> Any:
        name = api.create_repo(repository, repo_type=kind, private=private, exist_ok=True).repo_id
        return api.upload_folder(
            repo_id=name, repo_type=kind, folder_path=folder, ignore_patterns=ignore, commit_message="Run of AlignOPSD"
        )

    return str(_told(upload, repository, again).commit_url)


def _told(upload: Callable[[], Any], repository: str, again: str) -> Any:
    try:
        return upload()
    except (HfHubHTTPError, LocalTokenNotFoundError, httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PushFailed(
            f"nothing was pushed to {repository}: {reason}. The run is whole; push again: {again}"
        ) from error
