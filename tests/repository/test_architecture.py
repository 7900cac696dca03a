"""The rules of `docs/design.md`: who may import whom, where TRL's private names are, which facts are cited.

Every message says what to do. The rules are the tables at the top.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from accelerate.state import GradientState
from setuptools import find_packages
from trl import GRPOTrainer

ROOT = Path(__file__).parents[2]
PACKAGE, ENVIRONMENTS, SHELF = "alignopsd_trl", "alignopsd_trl.environments", "commands"

MAY_IMPORT = {
    "turns": (),
    "common": ("common",),
    "encoder": ("common",),
    "records": ("turns", "common"),
    "methods": ("turns", "common", "methods"),
    "rollout": ("turns", "common", "rollout"),
    "skills": ("turns", "common", "encoder", "rollout", "skills"),
    "config": ("common", "rollout.options", "skills", "methods.align_opsd.options"),
    "runs": ("turns", "common", "records", "rollout", "runs"),
    "scoring": ("turns", "common", "config", "rollout", "scoring"),
    "sampling": ("turns", "common", "config", "rollout", "scoring", "sampling"),
    "checks": ("turns", "common", "config", "encoder", "methods", "rollout", "runs", "scoring", "skills", "checks"),
    "results": ("turns", "common", "config", "records", "rollout", "runs", "sampling", "skills", "results"),
    "commands.viewer": ("common", "records", "runs", "commands.viewer"),
    "commands.analysis": ("common", "encoder", "methods.align_opsd", "records", "runs", "commands.analysis"),
    "training": (
        *(
            "turns",
            "common",
            "config",
            "encoder",
            "records",
            "methods",
            "rollout",
            "runs",
            "scoring",
            "sampling",
            "skills",
        ),
        *("checks", "results", "training"),
    ),
    "trainer": (
        *("turns", "common", "config", "methods", "rollout", "runs", "scoring", "sampling", "skills"),
        *("checks", "results", "training"),
    ),
    "experimental": (
        *("turns", "common", "config", "results", "rollout", "scoring", "sampling", "training", "trainer"),
        "experimental",
    ),
    "commands.launch": (
        *("common", "config", "encoder", "methods", "records", "rollout.options", "runs", "scoring", "skills"),
        *("checks", "results", "training.console", "trainer", "commands.launch", "commands.viewer"),
    ),
    "commands.measure": (
        *("turns", "common", "config", "encoder", "methods", "records", "rollout", "runs", "scoring", "sampling"),
        *("skills", "checks", "training", "commands.launch", "commands.own_task", "commands.measure"),
    ),
    "commands.study": (
        *("common", "config", "methods", "records", "rollout.options", "runs"),
        *("commands.analysis", "commands.launch", "commands.study"),
    ),
    "commands.own_task": (
        *("turns", "common", "encoder", "methods", "rollout", "runs", "scoring", "sampling", "skills", "checks"),
        *("results", "commands.launch", "commands.own_task"),
    ),
    "commands.cli": ("common", "commands.launch"),
}
"""What a package or top-level module of `alignopsd_trl` may import of ours, whatever the place of the import."""

EXCEPTIONS = {
    ("methods", "config"): "the type of the argument of Method.__init__",
}
"""(package or module, what it imports): why."""

OPEN_ENVIRONMENTS = (
    "alignopsd_trl.environments.alike",
    "alignopsd_trl.environments.base",
    "alignopsd_trl.environments.batch",
    "alignopsd_trl.environments.loading",
    "alignopsd_trl.environments.shipped",
    "alignopsd_trl.environments.panel",
    "alignopsd_trl.environments.adapters",
)
"""What `alignopsd_trl` may know of the environments."""

COMPATIBILITY = "trl_"
"""Begin of the names of the files that may touch private names of TRL, transformers and Accelerate. What `trainer.py`
overrides, it may also call."""

MOST_MODULES = 6
MOST_PACKAGES = 12


def _files(package: str) -> list[Path]:
    """A package's own files, without templates, which become the user's; `alignopsd_trl/environments` is a link to the
    folder at the top level."""
    files = (ROOT / package.rpartition(".")[2]).rglob("*.py")
    return sorted(file for file in files if "templates" not in file.parts)


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = (PACKAGE, *parts) if parts[0] == "environments" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _modules() -> frozenset[str]:
    return frozenset(_module(file) for package in (PACKAGE, ENVIRONMENTS) for file in _files(package))


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _imports(file: Path) -> Iterator[str]:
    """Modules of ours that a file imports anywhere, under TYPE_CHECKING and inside functions too."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in _modules())
        elif isinstance(node, ast.ImportFrom) and node.module in _modules():
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in _modules() else node.module


def _package(module: str) -> str:
    """The room of a module; the commands' shelf has rooms of its own."""
    first, _, below = module.removeprefix(f"{PACKAGE}.").partition(".")
    return f"{first}.{below.partition('.')[0]}" if first == SHELF and below else first


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _excepted(module: str, imported: str) -> bool:
    return any(_within(module, (one,)) and _within(imported, (other,)) for one, other in EXCEPTIONS)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_the_rules_allow(package: str) -> None:
    for file in _files(PACKAGE):
        module = _module(file).removeprefix(f"{PACKAGE}.")
        if not _within(module, (package,)):
            continue
        for imported in _imports(file):
            if not imported.startswith(f"{PACKAGE}.") or _within(imported, (ENVIRONMENTS,)):
                continue
            name = imported.removeprefix(f"{PACKAGE}.")
            allowed = MAY_IMPORT[package] or "nothing of ours"
            assert _within(name, MAY_IMPORT[package]) or _excepted(module, name), (
                f"{module} imports {name}, but {package} may import {allowed}. Move what is shared to a package below "
                "both (a type to turns.py, a call to an argument), or change MAY_IMPORT here and the import rules of "
                "docs/design.md"
            )


def test_design_shows_every_package_that_has_a_rule() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text[text.index("| package or module | may import") : text.index("There is no circle")]
    packages = " ".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE))
    named = re.findall(r"`([\w.]+)`", packages)
    missing = set(MAY_IMPORT) - set(named)
    assert not missing, f"docs/design.md, 'The rooms': add a line for {', '.join(sorted(missing))}"
    for place, package in enumerate(named):
        below = {_package(name) for name in MAY_IMPORT[package]} - {package, *named[:place]}
        assert not below, f"docs/design.md, 'The rooms': {package} may import {below}; move its line below theirs"


def test_environments_and_the_trainer_side_know_each_other_through_the_contract_alone() -> None:
    for file in _files(ENVIRONMENTS):
        wrong = [name for name in _imports(file) if not _within(name, (ENVIRONMENTS,))]
        assert not wrong, f"{_module(file)} imports {wrong}: environments must work without {PACKAGE}; turn it around"
    for file in _files(PACKAGE):
        wrong = [
            name for name in _imports(file) if _within(name, (ENVIRONMENTS,)) and not _within(name, OPEN_ENVIRONMENTS)
        ]
        assert not wrong, (
            f"{_module(file)} imports {wrong}: use alignopsd_trl.environments.loading.load(name) and what "
            f"{', '.join(OPEN_ENVIRONMENTS)} offer"
        )


def test_there_is_no_import_circle() -> None:
    graph = {_module(file): set(_imports(file)) for package in (PACKAGE, ENVIRONMENTS) for file in _files(package)}
    for package in (PACKAGE, ENVIRONMENTS):
        graph[package] = set()  # a package's `__init__` names all its modules; nothing inside goes through it
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, (
            f"import circle {' -> '.join((*path[path.index(module) :], module))}: move what both need into a module of "
            "its own (imports under TYPE_CHECKING and inside functions count)"
        )
        if module not in done:
            for other in sorted(graph[module]):
                if other != module:
                    visit(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_every_package_has_a_rule() -> None:
    packages = {_package(_module(file)) for file in _files(PACKAGE)} - {PACKAGE, SHELF}
    assert packages == set(MAY_IMPORT), (
        f"MAY_IMPORT: add {packages - set(MAY_IMPORT)}, remove {set(MAY_IMPORT) - packages}"
    )


def test_nothing_inside_goes_through_the_front_door() -> None:
    for file in _files(PACKAGE):
        assert PACKAGE not in set(_imports(file)), (
            f"{_module(file)} imports from {PACKAGE} itself; import from the module that holds the name"
        )


def test_a_public_class_name_stands_in_one_module() -> None:
    modules: dict[str, list[str]] = {}
    for file in (file for package in (PACKAGE, ENVIRONMENTS) for file in _files(package)):
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(_module(file))
    for name, places in modules.items():
        assert len(places) == 1, f"{name} is a class of {', '.join(places)}; rename all but one"


@cache
def _foreign_private_names() -> frozenset[str]:
    """Private attributes of TRL's trainer, of the trainers below it, and of Accelerate's gradient state."""
    names: set[str] = set()
    for kind in (*GRPOTrainer.__mro__[:-1], GradientState):
        names |= {name for name in vars(kind) if name[0] == "_"}
        if kind.__module__.partition(".")[0] in ("trl", "transformers", "accelerate"):
            names |= set(re.findall(r"\bself\.(_[a-z]\w*)", inspect.getsource(kind)))
    return frozenset(name for name in names if not name.startswith("__"))


def _own_names(tree: ast.Module) -> set[str]:
    """Functions that a file defines, and attributes of ours that it assigns: a class may call what it overrides."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name(node.value) == "self"
    }
    return own | (stored - _foreign_private_names() if _inherits_from_trl(tree) else stored)


def _inherits_from_trl(tree: ast.Module) -> bool:
    bases = {_name(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    return bool(bases & {kind.__name__ for kind in GRPOTrainer.__mro__[:-1]})


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def test_private_names_of_trl_are_touched_in_files_of_that_name() -> None:
    touched = []
    for file in _files(PACKAGE):
        if file.name.startswith(COMPATIBILITY):
            continue
        tree = _tree(file)
        own = _own_names(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node.attr not in _foreign_private_names() or node.attr in own:
                continue
            touched.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.attr}")
    assert not touched, (
        f"private names of TRL, transformers or Accelerate outside their files ({', '.join(touched)}): give "
        f"a file {COMPATIBILITY}*.py a function for each, and tests/repository/test_trl_compat.py a line"
    )


NUMBER = re.compile(r"[A-H]\.\d+|[A-H]\b|\d+(?:\.\d+)?")
CITATION = re.compile(
    rf"\b([Mm]ethod facts|[Ww]eb[Ss]hop facts) ((?:{NUMBER.pattern})(?:(?:, and |, | and | to )(?:{NUMBER.pattern}))*)"
)


def _cited(text: str) -> Iterator[tuple[str, str]]:
    for chapter, numbers in CITATION.findall(re.sub(r"\s*\n\s*#?\s*", " ", text)):
        yield from ((chapter.lower(), number) for number in NUMBER.findall(numbers))


def _facts() -> dict[str, set[str]]:
    text = (ROOT / "research" / "reference_facts.md").read_text(encoding="utf-8")
    method, webshop = text.split("## WebShop facts")
    bold = re.compile(r"- \*\*([\w.]+)\*\*")
    return {
        "method facts": set(bold.findall(method)) | set(re.findall(r"^### ([A-H])\.", method, re.MULTILINE)),
        "webshop facts": set(bold.findall(webshop)) | set(re.findall(r"^### WebShop (\d+)\.", webshop, re.MULTILINE)),
    }


def test_every_cited_fact_is_in_reference_facts() -> None:
    facts, found = _facts(), 0
    for file in [*_files(PACKAGE), *_files(ENVIRONMENTS), *_files("tests"), *sorted((ROOT / "docs").glob("*.md"))]:
        if file == Path(__file__):
            continue
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"\bspec(ification)? sections? \d", text), (
            f"{file.relative_to(ROOT)} cites a specification that is not shipped: cite research/reference_facts.md, "
            "as in 'WebShop facts 9.2' or 'method facts E.41'"
        )
        for chapter, number in _cited(text):
            found += 1
            assert number in facts[chapter], (
                f"{file.relative_to(ROOT)} cites {chapter} {number}, which research/reference_facts.md does not have: "
                "correct the number, or add the fact there"
            )
    assert found > 30


def test_the_method_is_seen_at_first_sight() -> None:
    modules = sorted(file.name for file in (ROOT / PACKAGE).glob("*.py"))
    assert len(modules) <= MOST_MODULES, (
        f"{PACKAGE}/ has {len(modules)} modules beside its subpackages ({', '.join(modules)}), at most {MOST_MODULES} "
        "are meant to be there: put the new one into a package"
    )
    packages = sorted({room.partition(".")[0] for room in MAY_IMPORT} - {file.removesuffix(".py") for file in modules})
    assert len(packages) <= MOST_PACKAGES, f"{len(packages)} packages, at most {MOST_PACKAGES} are meant to be there"


def test_experiments_stay_out_of_the_wheel() -> None:
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    include = re.search(r"find_packages\(include=(\[.*?\])\)", source)
    assert include, "setup.py: name the packages with find_packages(include=[...])"
    packages = find_packages(str(ROOT), include=ast.literal_eval(include[1]))
    assert {name.partition(".")[0] for name in packages} == {PACKAGE}, (
        "setup.py installs more than the package; research, tests and benchmarks stay in the repository"
    )
    for package in (PACKAGE, ENVIRONMENTS):
        for file in _files(package):
            outside = {"benchmarks", "research"} & {name.partition(".")[0] for name in _all_imports(file)}
            assert not outside, f"{_module(file)} imports {outside}, which is not installed"


def test_tests_share_fakes_and_not_one_another() -> None:
    """Stand-ins live in `tests/fakes`, so that a test can be read, moved or deleted alone."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    tests = {file.stem for file in files if file.stem.startswith("test_")}
    fakes = {file.stem for file in (ROOT / "tests" / "fakes").glob("*.py")}
    for file in [*files, *sorted((ROOT / "research").rglob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))]:
        for name in _all_imports(file):
            place = file.relative_to(ROOT)
            assert name not in tests, f"{place} imports from {name}: move what both need into tests/fakes"
            assert name not in fakes, f"{place} imports {name}, which is at fakes.{name}"


def _all_imports(file: Path) -> list[str]:
    return re.findall(r"^\s*(?:from|import) ([\w.]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
