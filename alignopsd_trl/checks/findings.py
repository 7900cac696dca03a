"""The findings of `alignopsd check`, each one line with its remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A problem that would harm a run.

    Args:
        about: the kind of problem, in a word or two.
        text: the observation, and its remedy.
        ruins: whether it spoils a run; else it is only worth a look.
    """

    about: str
    text: str
    ruins: bool = True

    def __str__(self) -> str:
        return f"{'WRONG' if self.ruins else 'look '} {self.about}: {self.text}"
