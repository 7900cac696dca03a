"""What `alignopsd check` says: a finding is one line with its remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something that a run would suffer from.

    Args:
        about: a word for the kind.
        text: what was seen, and the remedy.
        ruins: it spoils a run; else it is worth a look.
    """

    about: str
    text: str
    ruins: bool = True

    def __str__(self) -> str:
        return f"{'WRONG' if self.ruins else 'look '} {self.about}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
