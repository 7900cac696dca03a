"""Pushes a run to the Hub: model, tokenizer, results and card in one commit; trajectories as a separate data set.

A failed push loses nothing: everything is already in the run's folder, and the error names the command that
pushes again.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from jinja2 import TemplateError

from alignopsd_trl.common.errors import RunEnded
from alignopsd_trl.common.files import whole_json, write_text
from alignopsd_trl.common.models import ADAPTER, base_of
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.results.card import is_hub_id, model_card, trainer_results, write_dataset
from alignopsd_trl.runs.files import EVALUATIONS, OF_A_MODEL, OF_A_RUN
from alignopsd_trl.runs.folder import TRAIN
from alignopsd_trl.runs.owned import NOTES, foreign, notes, owned
from alignopsd_trl.runs.reading import content_of, results_of
from alignopsd_trl.runs.state import RESULTS_FILE, RUN_FILE


class PushFailed(RunEnded):
    """Raised if a push fails; the run's folder is whole and can be pushed again."""

    resumable = False


def push_run(
    folder: str | os.PathLike,
    repository: str,
    token: str | None = None,
    private: bool | None = None,
    licence: str | None = None,
    base_model: str | None = None,
) -> str:
    """Uploads a run's model, tokenizer, results and card as one commit, and returns its address.

    Args:
        folder: output folder of a finished run.
        repository: id of the model's repository; created if it does not exist.
        token: of the Hub; the stored login by default.
        private: makes a new repository private.
        licence: licence id of the weights, for the card; the run's by default.
        base_model: Hub id of an adapter's base, where the run loaded it from a folder.

    Raises:
        FileNotFoundError: if the run isn't finished.
        ValueError: if a file is not as the run wrote it; names the file.
        PushFailed: if the Hub refused or could not be reached, or others can't load the base of an adapter.
    """
    folder = _finished(folder)
    for name in sorted(notes(folder).keys() - {"README.md", RUN_FILE}):
        file = folder / name
        if any(file.match(one) for one in OF_A_RUN) and (not file.is_file() or foreign([file], TRAIN)):
            how = "is not as the run wrote it" if file.is_file() else "is gone"
            raise ValueError(f"{file} {how}; bring it back, or resume the run, which writes the model anew")
    again = f"alignopsd push {shlex.quote(str(folder))} {shlex.quote(repository)}"
    instead = partial(_card, licence, base_model)
    instead(folder, repository)  # raises before anything is made on the Hub
    if not notes(folder):
        told = f"{folder / NOTES} is gone or damaged: whether the model is as the run wrote it is not known"
        print(f"note: {told}", file=sys.stderr, flush=True)
    return str(push_files(folder, repository, again, token, private, OF_A_RUN, instead, base_model).commit_url)


def push_trajectories(
    folder: str | os.PathLike, repository: str, token: str | None = None, private: bool | None = None
) -> str:
    """Uploads a run's trajectories as a data set with the configurations ``turns`` and ``episodes``, as one commit.

    Arguments, result and errors are those of `push_run`; ``repository`` is a data set's.
    """
    folder = _finished(folder)
    again = f"alignopsd push {shlex.quote(str(folder))} --trajectories {shlex.quote(repository)}"
    with tempfile.TemporaryDirectory() as made:
        write_dataset(folder, Path(made))
        return str(push_files(Path(made), repository, again, token, private, kind="dataset").commit_url)


def _finished(folder: str | os.PathLike) -> Path:
    folder = Path(folder)
    if not (results := results_of(folder)):
        raise FileNotFoundError(f"no finished run in {folder}: it has no {RESULTS_FILE}; resume the run first")
    for name in ("config", "model", "recipe", "after"):
        if not (results.get(name) and isinstance(results[name], dict)):
            raise ValueError(f"{folder / RESULTS_FILE} has no {name!r}, and is not of a run; name a run's folder")
    for name in EVALUATIONS:
        content_of(folder, name)
    return folder


def _card(licence: str | None, base_model: str | None, folder: Path, repository: str) -> dict[str, bytes]:
    """Returns the card for the repository, which loads the model by the repository's id; a card that was edited by hand
    stays as it is."""
    results, readme = results_of(folder), folder / "README.md"
    try:
        hub_id, own = results["config"].get("hub_model_id"), results["config"]["output_dir"]
        written = model_card(results, hub_id or Path(own).name, place=hub_id or own)
        edited = readme.is_file() and readme.read_bytes() != written.encode()
        if edited:
            readme.read_text(encoding="utf-8")  # as the Hub's client does, which says not of which file
        return {} if edited else {"README.md": model_card(results, repository, licence, base_model=base_model).encode()}
    except UnicodeDecodeError as error:
        raise ValueError(f"{readme} is not in UTF-8 ({error}); save it so, or remove it") from error
    except (LookupError, TypeError, AttributeError, TemplateError) as error:  # it holds less than a run writes
        problem = f"{folder / RESULTS_FILE} is not as a run writes it ({type(error).__name__}: {error})"
        raise ValueError(f"{problem}; bring it back, or resume the run, which writes it anew") from error


def push_files(
    folder: Path,
    repository: str,
    again: str,
    token: str | None = None,
    private: bool | None = None,
    patterns: Sequence[str] = ("**/*",),
    instead: Callable[[Path, str], Mapping[str, bytes]] = lambda folder, repository: {},
    base_model: str | None = None,
    kind: str = "model",
    **options: Any,
) -> CommitInfo:
    """Uploads files of a folder as one commit; creates the repository if it does not exist. Raises `PushFailed` as
    `push_run`, whose arguments it shares.

    Args:
        again: remedy after a failure, for the message.
        patterns: names of the files to upload, directly in the folder; all files by default.
        instead: maps the folder and the repository's whole id to contents that replace files.
        kind: ``"model"`` or ``"dataset"``.
        options: of ``HfApi.create_commit``.
    """
    api = HfApi(token=token)
    places = (folder, folder / "additional_chat_templates")
    found = sorted({path for place in places for pattern in patterns for path in place.glob(pattern)})
    files: dict[str, Any] = {path.relative_to(folder).as_posix(): path for path in found if path.is_file()}
    files |= _adapter(files, base_model, repository)
    message = options.pop("commit_message", "Run of AlignOPSD")
    try:
        name = api.create_repo(repository, repo_type=kind, private=private, exist_ok=True).repo_id
        added = [CommitOperationAdd(path, content) for path, content in (files | dict(instead(folder, name))).items()]
        return api.create_commit(name, added, commit_message=message, repo_type=kind, **options)
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        for secret in filter(None, (token, get_token())):
            reason = reason.replace(secret, "(token)")
        if not (token or get_token()):
            reason = "there is no token of the Hub; run hf auth login, set HF_TOKEN or pass --token"
        elif isinstance(error, HTTPError | ConnectionError) and not isinstance(error, HfHubHTTPError):  # no reply
            reason = f"{api.endpoint} can't be reached ({reason}); check the network, or set HF_ENDPOINT"
        raise PushFailed(
            f"nothing was pushed to {repository!r}: {reason}. The run is whole; push again: {again}"
        ) from error


def _adapter(files: Mapping[str, Path], base_model: str | None, repository: str) -> dict[str, bytes]:
    """Returns the config of an adapter with its base, which must be on the Hub."""
    if ADAPTER not in files:
        return {}
    config = whole_json(files[ADAPTER]) or {}
    base = base_model or str(config.get("base_model_name_or_path") or "")
    if not is_hub_id(base) or (not base_model and Path(str(base_of(str(files[ADAPTER].parent)))).is_dir()):
        raise PushFailed(
            f"nothing was pushed to {repository!r}: it is an adapter, and its base is a folder of this machine, "
            f"{base or 'which it does not name'}. If the Hub has that model, push with alignopsd push RUN REPOSITORY "
            "--base_model ID; if not, merge the adapter into it (peft's merge_and_unload) and push the whole model"
        )
    return {ADAPTER: json.dumps(config | {"base_model_name_or_path": base}, indent=2).encode()}


logger = logging.getLogger(__name__)


def write_card(trainer: Any, title: str | None = None, licence: str | None = None) -> None:
    """Writes ``README.md`` into a trainer's output folder: model, tasks and results, as far as the trainer knows them.
    The default title is the repository's or the folder's name."""
    folder, chosen = Path(trainer.args.output_dir), trainer.args.hub_model_id
    results = trainer_results(trainer, trainer.environment_factory, trainer.evaluations)
    place = trainer.hub_model_id or chosen or path_as_given(folder)
    with owned(TRAIN, folder / "README.md"):
        write_text(folder / "README.md", model_card(results, title or chosen or folder.name, licence, place))


def push_model(trainer: Any, message: str | None, blocking: bool, card: dict[str, Any], **given: Any) -> Any:
    """Pushes model, tokenizer, card and results of a trainer's output folder. Raises `PushFailed` if the Hub refused or
    could not be reached; the model is in the output folder.

    Args:
        blocking: whether to wait for the end of the push.
        card: arguments of the trainer's `create_model_card`.
        given: token, privacy and revision, in place of the configuration's.
    """

    def own_card(_: Path, repository: str) -> dict[str, bytes]:
        trainer.hub_model_id = repository
        trainer.create_model_card(**card)
        return {}

    folder = Path(trainer.args.output_dir)
    chosen = trainer.hub_model_id or trainer.args.hub_model_id or folder.name
    own_card(folder, chosen)
    more = {"patterns": OF_A_RUN, "instead": own_card, "run_as_future": not blocking}
    return _push(trainer, folder, chosen, message, **given, **more)


def push_checkpoint(trainer: Any, folder: str) -> None:
    """Pushes a checkpoint's model during training. A failed push does not end the run."""
    update = trainer.state.global_step
    message = f"Training in progress, step {update}"
    try:
        _push(trainer, Path(folder), str(trainer.hub_model_id), message, patterns=OF_A_MODEL)
    except PushFailed as error:
        logger.warning(f"checkpoint of update {update}: {error}")


def _push(trainer: Any, folder: Path, repository: str, message: str | None, **given: Any) -> Any:
    """Pushes files in one commit; the configuration has the token, privacy and revision that are not given."""
    args = trainer.args
    usual = {"token": args.hub_token, "private": args.hub_private_repo, "revision": args.hub_revision}
    options = usual | {name: value for name, value in given.items() if value is not None}
    return push_files(folder, repository, "trainer.push_to_hub()", commit_message=message, **options)
