"""An output folder that belongs to one run of a trainer, from the start of training to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.runs.configuration import configuration_of
from alignopsd_trl.runs.folder import RunFolder, claim_together


@contextlib.contextmanager
def session(trainer: Any, resume: str | bool | None) -> Generator[RunFolder]:
    """Claims a trainer's output folder for this run alone while the context is open, and marks the run's end. A folder
    that the trainer has already stays its owner's.

    Raises:
        RunFolderError: if the folder is in use, or holds a run that this one does not continue.
    """
    if trainer.run_folder is not None:
        yield trainer.run_folder
        return
    args = trainer.args
    facts = configuration_of(args, trainer.train_dataset, model=trainer.model.config._name_or_path)
    folder = claim_together(args.output_dir, facts, resume, args.overwrite_output_dir, aside=True)
    trainer.run_folder = folder
    try:
        yield folder
        folder.end()
        if folder.writes and any(folder.path.glob("trajectories/*.parquet")):
            print(f"where the credit went: alignopsd view {path_as_given(folder.path)}", flush=True)
    finally:
        folder.release()
        trainer.run_folder = None
