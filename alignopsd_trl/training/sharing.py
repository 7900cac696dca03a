"""Pushes a trained model in one commit with the project's own card, without tokens or trajectories."""

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
        private: whether a new repository is private; ``hub_private_repo`` by default.
        card: writes the card for a repository's name; card and results are pushed too. `None` pushes the model alone.

    Raises:
        PushFailed: if the Hub refused or could not be reached.
    """

    def own_card(_: Path, found: str) -> dict[str, bytes]:
        if card is not None:
            card(found)  # the repository's full name
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
    """Pushes a checkpoint's model during training (``hub_strategy``). A failed push does not end the run."""
    try:
        push(args, folder, repository, f"Training in progress, step {update}")
    except PushFailed as error:
        logger.warning(f"checkpoint of update {update}: {error}")
