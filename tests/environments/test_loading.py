"""Modules of the user's, found by name: environments, and what hides them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.shipped import BENCHMARKS, SHIPPED, Shipped

ROOT = Path(__file__).parents[2]


SUITE = "from alignopsd_trl.environments import PlainEnvironment, Step, Suite\n\n\ndef suite(**options):\n    return "
HALF = "Suite('half', Half, None, None, (), {})\n\n\nclass Half(PlainEnvironment):\n    step = Step\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Writes a module where one stands, and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_environment_of_a_module_is_found_where_one_stands(tmp_path: Path, module: Callable[[str, str], str]) -> None:
    module("plain_world", SUITE + "Suite('plain', object, None, None, (), options)\n")
    (tmp_path / "worlds_of_mine").mkdir()
    module("worlds_of_mine/__init__", "")
    module("worlds_of_mine/cave", "from plain_world import suite\n")
    for name in ("plain_world", "worlds_of_mine.cave"):
        assert load(name, depth=3).description == {"depth": 3}
    for unknown in ("no_world", "worlds_of_mine.sea", "no-world", "webshop_tyni"):
        with pytest.raises(ValueError, match=f"'{unknown}' is unknown; .*use one of {', '.join(SHIPPED)}, or"):
            load(unknown)


@pytest.mark.parametrize(
    ("name", "text", "error", "said"),
    [
        (
            *("failing_world", "def suite(**options):\n    return options['floor']\n", ValueError),
            r"failing_world.py failed with KeyError: 'floor' \(.*failing_world.py, line 2\)",
        ),
        (
            "odd_world",
            SUITE + "options\n",
            ValueError,
            "odd_world.* returned dict; it must return an environments.Suite",
        ),
        ("empty_world", "", ValueError, "'empty_world' is the module .*empty_world.py, which has no function suite"),
        ("needy_world", "import nowhere_to_be_found\n", ModuleNotFoundError, "nowhere_to_be_found"),
        ("half_world", SUITE + HALF, TypeError, r"environment Half has no reset\(\); write it, as"),
        (
            *("listed_world", SUITE + "Suite('listed', object, None, lambda name: [{}], (), {})\n", ValueError),
            r"'listed_world': panel\('test'\) returned list; it must return a TaskPanel",
        ),
    ],
)
def test_a_module_that_makes_no_suite_is_refused(
    name: str, text: str, error: type[Exception], said: str, module: Callable[[str, str], str]
) -> None:
    with pytest.raises(error, match=said):
        load(module(name, text)).panel("test")


def test_shipped_environments_are_all_there() -> None:
    folder = ROOT / "environments"
    assert all((folder / name).is_dir() or (folder / f"{name}.py").is_file() for name in SHIPPED)
    assert all((folder / name / "__main__.py").is_file() for name in BENCHMARKS)


def test_a_benchmark_declares_itself(tmp_path: Path) -> None:
    """All that a further benchmark needs outside of its own modules is this file in its folder."""
    file = tmp_path / "shipped.toml"
    file.write_text(
        """
        title = "Cave"
        averages = { success = "Avg" }
        skill_prefix = "cav"
        [action_grammar]
        pattern = '(go|take) (.*)'
        same_argument = ["take"]
        [preset]
        max_turns = 9
        [released.7b]
        action_filter = "none"
        [variants.cave_tiny]
        rounds = 3
        """
    )
    cave = Shipped.read(file)
    assert (cave.preset, cave.released, cave.variants) == (
        {"max_turns": 9},
        {"7b": {"action_filter": "none"}},
        {"cave_tiny": {"rounds": 3}},
    )
    keys = [cave.action_grammar.key(action) for action in ("go up", " go down ", "take gold", "take ", "sleep")]
    assert keys == [("go", ""), ("go", ""), ("take", "gold"), None, None]


@pytest.fixture
def own_environments(tmp_path: Path) -> Path:
    """A folder with the user's own package of this name."""
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "__init__.py").write_text("MINE = 1\n")
    return tmp_path


def test_a_folder_called_environments_of_the_users_is_in_nobodys_way(own_environments: Path) -> None:
    code = "import environments; from alignopsd_trl.environments import load; load('webshop_tiny'); "
    code += "print(environments.MINE)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=own_environments)
    assert ended.stdout == "1\n", ended.stderr


@pytest.mark.full
def test_a_plan_is_made_where_the_user_has_a_package_of_this_name_and_imports_no_trainer(
    own_environments: Path,
) -> None:
    code = (
        "import sys; from alignopsd_trl.commands.cli import main; main(['train', 'webshop_tiny', '--plan'])\n"
        "heavy = {'alignopsd_trl.trainer', 'alignopsd_trl.commands.launch.running'}\n"
        "heavy |= {'trl.trainer.grpo_trainer', 'vllm'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=own_environments)
    assert ended.returncode == 0 and "webshop" in ended.stdout, ended.stderr


def test_a_count_after_a_panel_s_name_is_a_fixed_draw_of_its_tasks() -> None:
    suite = load("webshop")
    whole, panel = suite.panel("test"), suite.panel("test/128")
    ranked = sorted(whole.task_ids, key=lambda one: hashlib.sha256(one.encode()).hexdigest())
    assert len(panel) == 128 and set(panel.task_ids) == set(ranked[:128])
    assert list(panel.task_ids) == [one for one in whole.task_ids if one in set(panel.task_ids)]
    assert panel.checksum == load("webshop", reward="score").panel("test/128").checksum != whole.checksum
    assert panel.name == f"{whole.name}/128" and len(suite.panel("test/9999")) == len(whole)
    with pytest.raises(ValueError, match="has no tasks"):
        suite.panel("test/0")
