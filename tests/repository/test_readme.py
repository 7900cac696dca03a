"""The README's commands run as they are printed, one after another, in a shell that has done nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LAPTOP, ON_A_GPU = README.split("## On one GPU")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", LAPTOP, re.MULTILINE | re.DOTALL)

SHORTER = """
small="--rounds 1 --tasks_per_round 2 --num_generations 4 --panel_limit 4 --evaluate_first False --disable_tqdm True"
python3() { [ "$1 $2" = "-m venv" ]; }
pip() { [ "$1" = install ]; }
alignopsd() {
    case $1 in
        train) command alignopsd "$@" $small ;;
        new) command alignopsd "$@" --model tiny ;;
        *) command alignopsd "$@" ;;
    esac
}
python() {
    if [ "$1" = train.py ]; then
        command alignopsd demonstrate maze --episodes 64
        command alignopsd warm_start maze --minutes 0.1 --tasks 0
        set -- "$@" $small
    fi
    command python "$@"
}
"""
"""Makes the runs of the commands short. The environment is there already: the installation is `.ci/run`'s."""


@pytest.mark.full
def test_its_commands_run_one_after_another_in_a_bare_shell(tmp_path: Path) -> None:
    environment = Path(sys.prefix)
    if not (environment / "bin" / "activate").is_file():
        pytest.skip("the tests do not run in an environment that a shell can activate")
    (tmp_path / ".venv").symlink_to(environment)
    lines = [SHORTER]
    for number, (language, block) in enumerate(BLOCKS):
        if language == "python":
            (tmp_path / f"block_{number}.py").write_text(block)
        lines.append(block if language == "bash" else f"python block_{number}.py 2>block_{number}.err")
    (tmp_path / "readme.sh").write_text("\n".join(lines))
    bare = ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={tmp_path}", "OMP_NUM_THREADS=1", shutil.which("bash") or "bash"]
    done = subprocess.run([*bare, "-e", "readme.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert (tmp_path / "outputs/webshop_trips/view.html").is_file()
    assert (tmp_path / "maze/outputs/maze/results.json").is_file()
    assert "nothing found" in done.stdout and "success %" in done.stdout
    (said,) = [file.read_text() for file in tmp_path.glob("block_*.err")]
    assert "warn" not in said.lower() and "max_prompt_length" not in said, said


def test_an_environment_is_made_and_activated_before_it_is_used() -> None:
    for page in (LAPTOP, ON_A_GPU):
        begun = False
        for line in "".join(re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)).splitlines():
            begun |= bool(re.match(r"python3 -m venv (\S+) && \. \1/bin/activate", line))
            assert begun or line.startswith("python3 -m venv"), line
