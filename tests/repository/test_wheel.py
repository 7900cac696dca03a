"""The wheel: what is in it, and that it trains where there is no repository.

Built and installed here without the network: the clean environment finds the packages that the wheel needs in the
environment of the tests, by a list of folders in a ``.pth`` file, and of this project only what the wheel brought.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/somebody/alignopsd"  # of a release that is not there
PARTS = (
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "NOTICE.md",
    "CITATION.cff",
    "alignopsd_trl",
    "environments",
    "recipes",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    of_a_release = {**os.environ, "ALIGNOPSD_REPOSITORY": REPOSITORY}
    command = [sys.executable, "-c", build]
    done = subprocess.run(command, cwd=source, env=of_a_release, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return source / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def _kept(folder: str, *patterns: str) -> set[str]:
    return {file.relative_to(ROOT).as_posix() for one in patterns for file in (ROOT / folder).rglob(one)}


def test_it_holds_all_that_a_run_reads(names: set[str]) -> None:
    wanted = _kept("alignopsd_trl", "*.py", "*.jinja", "*.safetensors", "*.json", "*.js", "*.css", "*.html", "py.typed")
    inside = _kept("environments", "*.py", "*.jinja", "*.json", "*.jsonl", "*.txt") | _kept(
        "recipes", "*.py", "*.yaml", "*.sbatch"
    )
    wanted |= {f"alignopsd_trl/{one}" for one in inside} | _kept("alignopsd_trl/commands/own_task/templates", "*.*")
    assert wanted <= names, sorted(wanted - names)
    assert {"alignopsd_trl/py.typed", "alignopsd_trl/recipes/accelerate/fsdp2.yaml"} <= wanted
    outside = ("tests", "benchmarks", "docs", "research", "environments", "recipes")
    assert not [one for one in names if one.startswith(outside)]


MOST = 10_000_000  # bytes of all shipped weights


def test_shipped_weights_are_small_and_load_as_float32(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    files = [one for one in archive.infolist() if one.filename.endswith(".safetensors")]
    assert len(files) >= 3 and sum(one.file_size for one in files) <= MOST
    for one in files:
        folder, content = Path(one.filename).parent, archive.read(one)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        kinds = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
        assert "F32" not in kinds, f"{one.filename}: store its weights as float16"
        if folder.parent.name != "encoders":  # a policy
            assert json.loads(archive.read(f"{folder}/config.json"))["dtype"] == "float32"


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (place,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
    return message_from_string(archive.read(place).decode())


@pytest.fixture(scope="module")
def page(metadata: Message) -> str:
    return str(metadata.get_payload())


def test_an_index_can_show_its_page(metadata: Message, page: str) -> None:
    found = metadata
    assert "Typing :: Typed" in found.get_all("Classifier", []) and "Apache-2.0" in (
        found["License"],
        found["License-Expression"],
    )
    assert found["Description-Content-Type"] == "text/markdown" and page.startswith("# AlignOPSD")
    relative = re.findall(r"""(?:\]\(|src(?:set)?=")(?!https://|#)[^)"]*""", page)
    assert not relative, relative
    version = f"v{found['Version']}"
    assert f'src="{REPOSITORY}/raw/{version}/docs/images/viewer.png"' in page
    assert f"({REPOSITORY}/blob/{version}/docs/method.md)" in page
    colab = REPOSITORY.replace("github.com", "colab.research.google.com/github")
    assert f"({colab}/blob/{version}/notebooks/quickstart.ipynb)" in page


def commands(page: str) -> list[str]:
    return [line for block in re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S) for line in block.splitlines()]


def test_its_commands_are_those_after_an_installation(page: str) -> None:
    assert commands(page)[0] == "pip install alignopsd-trl"
    for clones in ("<!--", "-e .", "constraints.txt", "recipes/", ".venv", "pytest"):
        assert clones not in page, f"the page on the index shows {clones}, which is for a clone"


def test_links_of_a_release_lead_to_its_repository() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    tree.body = [one for one in tree.body if not isinstance(one, ast.Expr)]  # all but the call of setup()
    names: dict = {}
    exec(compile(tree, "setup.py", "exec"), names)
    text = "[docs/a.md](docs/a.md), [how](docs/b.md), [site](https://x.org/y), [here](#place)"
    place = "https://host.example/us/alignopsd"
    text += '\n<picture><img src="docs/a.png"></picture>\n\n'
    made = names["index_page"](text, place)
    assert made.count(f"{place}/blob/v{names['VERSION']}/docs/") == 2
    assert "[site](https://x.org/y), [here](#place)" in made
    without = names["index_page"](text, "")
    assert without.startswith("docs/a.md, how (`docs/b.md`), [site](https://x.org/y)") and "picture" not in without
    for path in re.findall(r"\]\((?![a-z]+:|#)([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        file, _, heading = path.partition("#")
        assert (ROOT / file).exists(), f"README.md links to {path}, which is not there"
        if heading:
            found = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {one.lower().replace(" ", "-") for one in found}, f"{file} has no heading for #{heading}"


def test_it_trains_in_a_clean_environment_from_another_folder(wheel: Path, page: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")}))
    others = [one for one in sys.path if one.endswith("site-packages") and Path(one) != own]
    (own / "others.pth").write_text("\n".join(others))
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    (tmp_path / "elsewhere").mkdir()

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(tmp_path / "env" / "bin" / command[0]), *command[1:]],
            cwd=tmp_path / "elsewhere",
            env=surroundings,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    found = run("python", "-c", "import alignopsd_trl.environments as e; print(e.__file__)")
    assert all(Path(one).is_relative_to(own) for one in found.split())
    assert str(own) in run("alignopsd", "--files", "fsdp2")
    run("alignopsd", "new", "maze")
    assert "nothing found" in run("alignopsd", "check", "maze", "--episodes", "4")
    small = "--rounds 1 --tasks_per_round 2 --num_generations 4 --panel_limit 4 --evaluate_first False".split()
    training = next(line for line in commands(page) if line.startswith("alignopsd train"))
    run(*training.split(), *small, "--output_dir", "out", "--disable_tqdm", "True")
    results = json.loads((tmp_path / "elsewhere" / "out" / "results.json").read_text())
    assert results["updates"] == 1 and results["after"]["episodes"] == 4
    viewed = run("alignopsd", "view", "out").split()[-1]
    assert (tmp_path / "elsewhere" / viewed).stat().st_size > 20_000
