"""Writes the card of a trainer's run and pushes its model to the Hub, one commit at a time."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from alignopsd_trl.common.files import write_text
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.results.card import model_card, trainer_results
from alignopsd_trl.results.hub import OF_A_MODEL, OF_A_RUN, PushFailed, push_files
from alignopsd_trl.runs.folder import TRAIN
from alignopsd_trl.runs.owned import owned

logger = logging.getLogger(__name__)


def write_card(trainer: Any, title: str | None = None, licence: str | None = None) -> None:
    """Writes ``README.md`` into a trainer's output folder: model, tasks and results, as far as the trainer knows them.

    Args:
        title: of the card; the repository's or the folder's name by default.
        licence: licence id of the weights.
    """
    folder, chosen = Path(trainer.args.output_dir), trainer.args.hub_model_id
    results = trainer_results(trainer, trainer.environment_factory, trainer.evaluations)
    place = trainer.hub_model_id or chosen or path_as_given(folder)
    with owned(TRAIN, folder / "README.md"):
        write_text(folder / "README.md", model_card(results, title or chosen or folder.name, licence, place))


def push_model(trainer: Any, message: str | None, blocking: bool, card: dict[str, Any], **given: Any) -> Any:
    """Pushes model, tokenizer, card and results of a trainer's output folder.

    Args:
        blocking: whether to wait for the end of the push.
        card: arguments of the trainer's `create_model_card`.
        given: token, privacy and revision, in place of the configuration's.

    Raises:
        PushFailed: if the Hub refused or could not be reached; the model is in the output folder.
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
    try:
        message = f"Training in progress, step {update}"
        _push(trainer, Path(folder), str(trainer.hub_model_id), message, patterns=OF_A_MODEL)
    except PushFailed as error:
        logger.warning(f"checkpoint of update {update}: {error}")


def _push(trainer: Any, folder: Path, repository: str, message: str | None, **given: Any) -> Any:
    """Pushes files in one commit; the configuration has the token, privacy and revision that are not given."""
    args = trainer.args
    usual = {"token": args.hub_token, "private": args.hub_private_repo, "revision": args.hub_revision}
    options = usual | {name: value for name, value in given.items() if value is not None}
    return push_files(folder, repository, "trainer.push_to_hub()", commit_message=message, **options)
