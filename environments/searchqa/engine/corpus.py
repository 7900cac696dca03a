"""A passage corpus on disk: JSON lines, read by row number through a memory map.

Row order is part of every index over the file, hence the checksum over its bytes.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from alignopsd_trl.environments.searchqa.engine.retrieval import Passage

FILE_NAME = "corpus.jsonl"


class CorpusError(ValueError):
    """Raised for a corpus or an index that can't be used. The message names the file, the row and the remedy."""


class Corpus:
    """Rows ``{"id": "0", "contents": "\\"Title\\"\\nText"}``; more fields are allowed and kept.

    Args:
        path: a ``.jsonl`` file, or a folder with ``corpus.jsonl`` in it.

    Raises:
        CorpusError: if there is no such file, or no passage in it.
    """

    def __init__(self, path: str | Path):
        path = Path(path)
        self.path = path / FILE_NAME if path.is_dir() else path
        if not self.path.is_file():
            raise CorpusError(f"corpus {self.path} does not exist; give a .jsonl file or a folder with {FILE_NAME}")
        if self.path.stat().st_size == 0:
            raise CorpusError(f"corpus {self.path} is empty; it needs at least one passage")
        with self.path.open("rb") as handle:
            self._bytes = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def checksum(self) -> str:
        """The sha256 of the file's bytes."""
        return hashlib.sha256(self._bytes).hexdigest()

    @cached_property
    def offsets(self) -> np.ndarray:
        """The start of each row, and the end of the last one, (N + 1,) int64."""
        starts, position = [0], 0
        while position < len(self._bytes):
            found = self._bytes.find(b"\n", position)
            position = len(self._bytes) if found < 0 else found + 1
            starts.append(position)
        return np.asarray(starts, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, number: int) -> dict[str, Any]:
        """Returns one row as it is in the file.

        Raises:
            CorpusError: if it is not JSON or not a passage with a title.
        """
        line = self._bytes[self.offsets[number] : self.offsets[number + 1]]
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CorpusError(f"{self.path}, row {number}: not a line of JSON ({error})") from error
        if (problem := _problem(row)) is not None:
            raise CorpusError(f"{self.path}, row {number}: {problem}")
        return row

    def passage(self, number: int, score: float | None = None) -> Passage:
        row = self.row(number)
        return Passage(row["contents"], str(row["id"]) if "id" in row else None, score)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.row(number) for number in range(len(self)))


def _problem(row: Any) -> str | None:
    contents = row.get("contents") if isinstance(row, dict) else None
    if not isinstance(contents, str) or not contents.strip():
        return 'field "contents" must be a non-empty string'
    title, line_break, text = contents.partition("\n")
    if len(title) < 3 or not (title.startswith('"') and title.endswith('"')):
        return f'passage without title: the first line of "contents" must be the title in double quotes, is {title!r}'
    if not line_break or not text.strip():
        return f'passage {title} without text: "contents" must be the title, a line break and the text'
    return None
