"""Streams the elements of a JSON list of any length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from tqdm.auto import tqdm

CHUNK = 1 << 24  # characters read at a time
_LONGEST = 1 << 26  # characters of one element before it counts as malformed


class JsonError(ValueError):
    """Raised for text that is not a JSON list, or stops being one. The message names the record."""


def stream_list(path: Path, progress: bool = False) -> Iterator[Any]:
    """Yields the elements of the JSON list in a file, with one piece of the file in memory.

    Raises:
        JsonError: if the top level is no list, or at the record where the text stops being JSON.
    """
    size = path.stat().st_size
    hidden = not progress or size < 2 * CHUNK
    with open(path, encoding="utf-8") as file, tqdm(total=size, unit="B", unit_scale=True, disable=hidden) as bar:
        bar.set_description(path.name)
        reader = _Reader(file, bar)
        if reader.mark() != "[":
            raise JsonError("the top level is not a list of products")
        if reader.mark(keep=True) == "]":
            return
        number = 0
        while True:
            yield reader.value(number)
            number += 1
            mark = reader.mark()
            if mark == "]":
                return
            if mark != ",":
                raise JsonError(f"after record {number - 1}: {mark!r} where ',' or ']' belongs (truncated file?)")


class _Reader:
    def __init__(self, file: TextIO, bar: tqdm):
        self._file, self._bar = file, bar
        self._decoder = json.JSONDecoder()
        self._buffer, self._position, self._ended = "", 0, False

    def _more(self) -> None:
        text = self._file.read(CHUNK)
        self._bar.update(len(text))
        self._buffer, self._position = self._buffer[self._position :] + text, 0
        self._ended = not text

    def mark(self, keep: bool = False) -> str:
        """The next character that is no white space, ``""`` at the end; consumed unless ``keep``."""
        while True:
            while self._position < len(self._buffer) and self._buffer[self._position] in " \t\n\r":
                self._position += 1
            if self._position < len(self._buffer) or self._ended:
                break
            self._more()
        found = self._buffer[self._position : self._position + 1]
        self._position += 0 if keep else len(found)
        return found

    def value(self, number: int) -> Any:
        self.mark(keep=True)
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
                if end < len(self._buffer) or self._ended:  # a number may go on in the next piece
                    self._position = end
                    return value
            except json.JSONDecodeError as error:
                if self._ended or len(self._buffer) - self._position > _LONGEST:
                    raise JsonError(f"record {number} is truncated or malformed JSON ({error})") from error
            self._more()
