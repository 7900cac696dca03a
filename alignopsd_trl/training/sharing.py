"""Shares a trained model as a recipe's is: one commit, a card of our own, no token and no trajectory in it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.runs.files import replacing, write_text
from alignopsd_trl.sharing.card import model_card
from alignopsd_trl.sharing.hub import OF_A_MODEL, OF_A_RUN, PushFailed, push_files

logger = logging.getLogger(__name__)


def write_card(folder: Path, results: Mapping[str, Any], name: str, licence: str | None, place: str) -> None:
    """Writes ``README.md``: what was trained on what and how well.

    Args:
        place: where the model is loaded from.
    """
    write_text(folder / "README.md", model_card(results, name, licence, place))


def push_run(
    args: AlignOPSDConfig,
    repository: str,
    write: Callable[[str], None],
    message: str | None,
    token: str | None,
    revision: str | None,
    blocking: bool,
) -> Any:
    """Pushes model, tokenizer, card and results of an output folder in one commit.

    Args:
        write: writes the card that names a repository.

    Raises:
        PushFailed: if the Hub refused or could not be reached.
    """

    def own_card(folder: Path, found: str) -> dict[str, bytes]:
        write(found)  # the repository's whole name, whatever was asked for
        return {}

    return _push(args, Path(args.output_dir), OF_A_RUN, repository, own_card, message, token, revision, blocking)


def push_checkpoint(args: AlignOPSDConfig, folder: Path, repository: str, update: int) -> None:
    """Pushes a checkpoint's model while training goes on (``hub_strategy``); a push that fails does not end the run."""
    message = f"Training in progress, step {update}"
    try:
        _push(args, folder, OF_A_MODEL, repository, lambda folder, repository: {}, message)
    except PushFailed as error:
        logger.warning(f"checkpoint of update {update}: {error}")


def _push(
    args: AlignOPSDConfig,
    folder: Path,
    patterns: tuple[str, ...],
    repository: str,
    instead: Callable[[Path, str], dict[str, bytes]],
    message: str | None,
    token: str | None = None,
    revision: str | None = None,
    blocking: bool = True,
) -> Any:
    return push_files(
        folder,
        repository,
        "trainer.push_to_hub()",
        token or args.hub_token,
        args.hub_private_repo,
        patterns,
        instead,
        commit_message=message,
        revision=revision or args.hub_revision,
        run_as_future=not blocking,
    )


def safe_place(target: Path, output_dir: Path) -> contextlib.AbstractContextManager[Path]:
    """Where a model is written that goes to ``target``: in the run's own folder, where there is no mark that is written
    last, each file is replaced in one step."""
    return replacing(target) if target == output_dir else contextlib.nullcontext(target)
