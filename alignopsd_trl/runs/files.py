"""The list of a run's files, `FILES`: ownership, a resume, the push and docs/runs.md follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from alignopsd_trl.runs.sizes import SIZES_FILE
from alignopsd_trl.runs.state import LIST_FILE, LOCK_FILE, MARK, PREFIX, RESULTS_FILE, RUN_FILE, STATE_FILE

LOG_FILE, BEST_FILE = "log.jsonl", "held_out_best.weights"
TRAJECTORIES, COMPLETIONS = "trajectories", "completions"
SCHEMAS = {RUN_FILE: 1, RESULTS_FILE: 2}
"""Schema versions that are written; older ones can be read."""
RECORDS = re.compile(r"(?:step|completions)_(?P<step>\d+)(?:_round(?P<round>\d+))?(?:_rank(?P<rank>\d+))?\.parquet")
"""Names of the files in the folders of records."""


@dataclass(frozen=True)
class RunFile:
    """One kind of file in a run's folder. With ``overwrite_output_dir`` it "goes", is "replaced" once its successor is
    written, and only where the run wrote it as it is, or "stays"."""

    patterns: tuple[str, ...]  # its names, as `Path.glob` takes them
    overwritten: str = "goes"
    pushed: bool = False  # into the model's repository
    begun: bool = False  # whether it shows that a run got somewhere
    called: str = ""  # in docs/runs.md; by its patterns by default

    @property
    def name(self) -> str:
        return self.called or ", ".join(f"`{pattern}`" for pattern in self.patterns)


OF_CHECKPOINTS = (STATE_FILE, MARK, LIST_FILE)
EVALUATIONS = tuple(f"evaluation_{when}.json" for when in ("before", "after"))
_DIALOGUES = tuple(name.replace("json", "parquet") for name in EVALUATIONS)
MODEL_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.jinja", SIZES_FILE),
)
_MODEL = RunFile(MODEL_FILES, "replaced", pushed=True, called="model, tokenizer")
_OF_SOME_MODELS = RunFile(("added_tokens.json", "*.model", "*.py"), "stays", pushed=True)
_WRITTEN_ANEW = (RUN_FILE, LOG_FILE, TRAJECTORIES, COMPLETIONS, f"{PREFIX}-*/", BEST_FILE)
FILES = (
    *(RunFile((name,)) for name in _WRITTEN_ANEW),
    RunFile((LOCK_FILE,), "stays"),
    RunFile(EVALUATIONS, pushed=True, begun=True),
    RunFile(_DIALOGUES, begun=True),
    RunFile((RESULTS_FILE,), pushed=True, begun=True),
    *(_MODEL, _OF_SOME_MODELS),
    RunFile(("README.md",), "replaced", pushed=True),
    RunFile(("training_args.bin",), "replaced"),
)


def found(run: Path, *overwritten: str) -> list[Path]:
    """Returns the files that ``overwrite_output_dir`` treats so; the one that says whose the folder is comes last."""
    patterns = [pattern for one in reversed(FILES) if one.overwritten in overwritten for pattern in one.patterns]
    return [one for pattern in patterns for one in sorted(run.glob(pattern))]


MARKS = tuple(f"{PREFIX}-*/{name}" for name in OF_CHECKPOINTS)
MARKS += tuple(pattern for one in FILES if one.begun for pattern in one.patterns)
OF_A_MODEL = (*_MODEL.patterns, *_OF_SOME_MODELS.patterns)
OF_A_RUN = tuple(pattern for one in FILES if one.pushed for pattern in one.patterns)
"""Files that go into the model's repository. All others in a run's folder (trajectories, the viewer's pages, a
tracker's files, pickled arguments, your notes) stay there."""


def record_sizes(run: Path, update: int) -> dict[str, int]:
    """Returns the sizes in bytes of a run's files of trajectories of the rounds before an update, by their names."""
    named = ((RECORDS.fullmatch(file.name), file) for file in sorted((run / TRAJECTORIES).glob("*.parquet")))
    return {file.name: file.stat().st_size for found, file in named if found and int(found["step"]) < update}
