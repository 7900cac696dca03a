"""Draws the rooms of docs/design.md anew: every module with the first sentence of its docstring.

python tools/draw_house.py
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DESIGN = ROOT / "docs" / "design.md"
PACKAGES = ("alignopsd_trl", "environments")
WIDTH = 120
_EMPTY = ("__init__.py", "__main__.py")


def main() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    for package in PACKAGES:
        block = f"```\n{package}/\n" + "\n".join(drawn(ROOT / package)) + "\n```"
        text, count = re.subn(rf"```\n{package}/\n.*?```", lambda _, block=block: block, text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{DESIGN}: give {package} one block that begins with ``` and a line '{package}/'")
    DESIGN.write_text(text, encoding="utf-8")


def drawn(folder: Path, depth: int = 1) -> list[str]:
    """Lines of a folder: its modules, then its subpackages, each indented by two spaces a level."""
    lines = []
    for file in sorted(folder.glob("*.py")):
        if file.name not in _EMPTY or len(ast.parse(file.read_text(encoding="utf-8")).body) > 1:
            head = f"{'  ' * depth}{file.name:<{24 - 2 * depth}} "
            lines.append(head + _short(_sentence(file), WIDTH - len(head)))
    for inner in sorted(path for path in folder.iterdir() if any(path.glob("*.py"))):
        lines += [f"{'  ' * depth}{inner.name}/", *drawn(inner, depth + 1)]
    return lines


def _sentence(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?:\s|$)", " ".join(text.split("\n\n")[0].split()))[0]


def _short(text: str, width: int) -> str:
    """The text as far as it fits: cut where a part of the sentence ends, if that is not too early."""
    if len(text) <= width:
        return text
    ends = [match.start() for match in re.finditer(r"[,:;(]| and ", text[: width + 1])]
    return text[: max((end for end in ends if end > width // 3), default=width)].rstrip(" ,:;")


if __name__ == "__main__":
    main()
