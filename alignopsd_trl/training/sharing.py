"""Shares a trained model as a recipe's is: one commit, a card of our own, no token and no trajectory in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.sharing.hub import OF_A_MODEL, OF_A_RUN, PushFailed, push_files

logger = logging.getLogger(__name__)


def push(
    args: AlignOPSDConfig,
    folder: Path,
    repository: str,
    message: str | None,
    card: Callable[[str], None] | None = None,
    token: str | None = None,
    revision: str | None = None,
    blocking: bool = True,
    private: bool | None = None,
) -> Any:
    """Pushes a model and its tokenizer in one commit.

    Args:
        private: of a repository that is made; ``hub_private_repo`` by default.
        card: writes the card that names a repository; it and the results go too. `None` for the model alone.

    Raises:
        PushFailed: if the Hub refused or could not be reached.
    """

    def own_card(_: Path, found: str) -> dict[str, bytes]:
        if card is not None:
            card(found)  # the repository's whole name, whatever was asked for
        return {}

    return push_files(
        folder,
        repository,
        "trainer.push_to_hub()",
        token or args.hub_token,
        args.hub_private_repo if private is None else private,
        OF_A_MODEL if card is None else OF_A_RUN,
        own_card,
        commit_message=message,
        revision=revision or args.hub_revision,
        run_as_future=not blocking,
    )


def push_checkpoint(args: AlignOPSDConfig, folder: Path, repository: str, update: int) -> None:
    """Pushes a checkpoint's model while training goes on (``hub_strategy``); a push that fails does not end the run."""
    try:
        push(args, folder, repository, f"Training in progress, step {update}")
    except PushFailed as error:
        logger.warning(f"checkpoint of update {update}: {error}")
