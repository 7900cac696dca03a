"""Pages say what is so: their Python runs, and what they name exists."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.sweeps import mostly_full

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


FRAGMENT = "# fragment: "
"""How a block of Python begins that is no whole program; the rest of the line says what it needs."""
ELSEWHERE = {"docs/add_a_method.md"}  # pages that tests/methods/test_method_contract.py runs
PYTHON = [
    (page, block)
    for page in sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
    for block in blocks(page, "python")
]
WHOLE = {page for page, block in PYTHON if not block.startswith(FRAGMENT)} - ELSEWHERE


@pytest.mark.parametrize("page", mostly_full(sorted(WHOLE, key=lambda page: (page == "docs/agents.md", page)), 4))
def test_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for whole in (block for at, block in PYTHON if at == page and not block.startswith(FRAGMENT)):
        exec(compile(whole, page, "exec"), names)


def test_a_fragment_can_be_read_and_says_what_it_needs() -> None:
    for page, block in PYTHON:
        compile(block, page, "exec")
        assert not block.startswith("# fragment") or re.match(FRAGMENT + r"\w.+", block), f"{page}: {block:.40}"


def test_pages_name_commands_recipes_and_flags_that_exist() -> None:
    from alignopsd_trl.commands.cli import COMMANDS
    from alignopsd_trl.commands.launch.presets import preset_names

    flags = known_flags() | set(OF_OTHERS.split())
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        named = {
            "command": set(re.findall(r"alignopsd ([a-z_]+)", text)) - set(COMMANDS),
            "recipe": set(re.findall(r"alignopsd train ([a-z][\w.]*)", text)) - set(preset_names()),
            "flag": set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)) - flags,
        }
        for kind, unknown in named.items():
            assert not unknown, f"{page.name} names {kind} {', '.join(sorted(unknown))}, which there is not"


OF_OTHERS = """
    config_file num_processes machine_rank main_process_ip main_process_port nodes logdir files traceback name
    served-model-name enable-auto-tool-choice tool-call-parser data-parallel-size enable-scale-out max-model-len
    max-num-seqs max-logprobs logprobs-mode weight-transfer-config
    dangerously-bypass-approvals-and-sandbox dangerously-skip-permissions exit-immediately provider skip-git-repo-check
    yolo auto message no-git weak-model yes-always
"""
"""Flags on the pages that are accelerate's, SLURM's, tensorboard's, vLLM's and coding agents', or `alignopsd`'s own."""


def known_flags() -> set[str]:
    """The flags of all commands and benchmarks, by their calls of `add_argument`, and the fields that are flags."""
    from trl import ModelConfig

    from alignopsd_trl.commands.launch.arguments import RecipeArguments
    from alignopsd_trl.commands.own_task.options import WarmStartConfig
    from alignopsd_trl.config import AlignOPSDConfig

    files = (
        file for folder in ("alignopsd_trl", "environments", "benchmarks") for file in (ROOT / folder).rglob("*.py")
    )
    flags = {one for file in files for one in re.findall(r'add(?:_argument)?\(\s*"--(\w+)"', file.read_text("utf-8"))}
    kinds = (AlignOPSDConfig, RecipeArguments, ModelConfig, WarmStartConfig)
    return flags | {one.name for kind in kinds for one in dataclasses.fields(kind)}


PAGE = "docs/your_own_task.md"
SMALL = ["--rounds", "1", "--tasks_per_round", "2", "--panel_limit", "4", "--disable_tqdm", "True"]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the page's first command writes, which is where the user stands."""
    from alignopsd_trl.commands.cli import main

    monkeypatch.chdir(tmp_path)
    main(["new", "maze", "--model", "tiny"])
    monkeypatch.chdir(tmp_path / "maze")
    before = set(sys.modules)
    yield tmp_path / "maze"
    for name in set(sys.modules) - before:
        if name.startswith(("maze", "train")):
            del sys.modules[name]
    sys.path[:] = [place for place in sys.path if not place.startswith(str(tmp_path))]


@pytest.mark.slow
def test_the_log_and_the_records_have_what_the_pages_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alignopsd_trl.commands.launch.recipe import main

    monkeypatch.chdir(tmp_path)
    results = main("webshop_tiny", [*SMALL, "--tasks_per_round", "8", "--output_dir", "outputs/webshop_tiny"])
    (first,) = [entry for entry in results["history"] if "episodes/success" in entry]
    for column in re.findall(r"^\| (`[a-z]+/[^|]*`[^|]*) \|", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`([\w/]+)`", column):
            assert name in first, f"{PAGE} explains {name}, which is not in the log"
    (reading,) = [block for block in blocks("docs/runs.md", "python") if "read_records" in block]
    exec(compile(reading, "docs/runs.md", "exec"), read := {})
    assert len(read["turns"]) and "credit_weight" in read["turns"]


def test_the_study_of_ones_own_is_planned(own_folder: Path) -> None:
    from alignopsd_trl.commands.study.spec import plan, read_study

    cells = plan(read_study("study.yaml"))
    assert [cell.line.method for cell in cells] == ["vanilla", "grpo", "align_opsd"]
    assert {cell.benchmark.label for cell in cells} == {"Maze"}


def test_targets_and_hooks_name_what_is_there() -> None:
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = dict(re.findall(r"^([a-z]+):  ## .*\n\t(.+)$", make, re.MULTILINE))
    assert set(targets) == set(re.findall(r"^\.PHONY: (.+)$", make, re.MULTILINE)[0].split())
    for name in re.findall(
        r"(?<= )(?:\.ci/\w+|\w+\.txt|Makefile)|^\.ci/\w+", "\n".join(targets.values()), re.MULTILINE
    ):
        assert (ROOT / name).exists(), f"the Makefile names {name}, which is not there"
    named = set(re.findall(r"`make ([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert named == set(targets) - {"help"}
    hooks = re.findall(r"entry: (\.venv/bin/\w+ \w+)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert len(hooks) == 3 and all(one in targets["lint"] for one in hooks)


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "research").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text(encoding="utf-8")):
            there = re.match(r"[a-z]+:", link) or (page.parent / link).exists()
            assert there, f"{page.relative_to(ROOT)} links to {link}, which is not there"


def test_method_page_names_functions_that_are_where_it_says() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \w+ \(`(\w+)\.py`\)\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert [room for room, _ in sections] == ["correspondence", "rectification", "spans", "credit"]
    for room, table in sections:
        module = importlib.import_module(f"alignopsd_trl.methods.align_opsd.{room}")
        named = [
            name for row in re.findall(r"\| ([^|]*) \|$", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
        ]
        elsewhere = {"TurnBatch.of", "TurnBatch.groups", "rollout_advantage", "token_advantages"}
        missing = [name for name in named if name not in elsewhere and not hasattr(module, name)]
        assert not missing, f"docs/method.md: {room}.py has no {', '.join(missing)}"


def test_the_page_on_own_tasks_has_each_field_of_a_warm_start() -> None:
    from alignopsd_trl.commands.own_task.options import WarmStartConfig

    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]*) \|", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    told = {name: default for names, default in rows for name in re.findall(r"\w+", names)}
    for one in dataclasses.fields(WarmStartConfig):
        assert one.name in told, f"{PAGE} does not explain {one.name}"
        assert one.default in (None, False) or str(one.default) in told[one.name], one.name
