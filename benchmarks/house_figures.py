"""How large the pieces of the house are: lines of files and functions, docstrings, annotations.

    python benchmarks/house_figures.py [FOLDER ...]     # folders of repositories to compare; this one by default

A function's lines are those of its body without the docstring, from the first to the last.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

PACKAGES = ("alignopsd_trl", "environments")


def figures(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob("*.py"))
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    lines = [len(file.read_text(encoding="utf-8").splitlines()) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    sizes = sorted(_size(node) for node in functions)
    documented = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    given = [_annotated(node) for node in functions]
    return {
        "files": str(len(files)),
        "median file": f"{statistics.median(lines):g}",
        "largest file": str(max(lines)),
        "functions": str(len(functions)),
        "function, median / p90": f"{statistics.median(sizes):g} / {sizes[int(0.9 * len(sizes))]}",
        "docstrings": f"{sum(ast.get_docstring(node) is not None for node in documented) / len(documented):.0%}",
        "annotations": f"{sum(given) / len(given):.0%}",
        "modules beside each other": str(sum(file.parent == folder for file in files)),
    }


def _size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def _annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = [one for one in node.args.args + node.args.kwonlyargs if one.arg not in ("self", "cls")]
    return node.returns is not None and all(one.annotation is not None for one in arguments)


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]] or [Path(__file__).parents[1]]
    for package in PACKAGES:
        columns = [figures(folder / package) for folder in folders]
        print(package)
        for name in columns[0]:
            print(f"  {name:<28}" + "".join(f"{column[name]:>16}" for column in columns))


if __name__ == "__main__":
    main()
