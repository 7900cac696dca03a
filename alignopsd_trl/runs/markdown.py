"""Foreign text in Markdown."""

from __future__ import annotations

import html
import re


def escaped(text: object) -> str:
    """Returns a text that Markdown shows as it is, on one line: no HTML, no code, no end of a table's cell."""
    return re.sub(r"([\\|`])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))
