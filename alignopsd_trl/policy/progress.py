"""A progress bar as a plain callable, so that rooms that report progress need not know of tqdm."""

from __future__ import annotations

from collections.abc import Callable

from tqdm.auto import tqdm


class Bar:
    """``with Bar(...) as progress: progress(3)``. Units are episodes. Shown on a terminal and in a notebook only."""

    def __init__(self, total: int, title: str, disable: bool):
        self._bar = tqdm(total=total, desc=title, unit="episode", leave=False, disable=disable or None)

    def __enter__(self) -> Callable[[int], None]:
        return self._bar.update

    def __exit__(self, *error: object) -> None:
        self._bar.close()
