"""What an earlier `alignopsd new` wrote still runs."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from alignopsd_trl.commands.launch.recipe import main as recipe
from alignopsd_trl.commands.own_task import check_task
from alignopsd_trl.commands.own_task.first_policy import first_policy

EARLIER = sorted((Path(__file__).parents[1] / "data" / "own_task").glob("train_*.py"))


@pytest.mark.parametrize("file", EARLIER, ids=lambda file: file.stem)
def test_a_recipe_that_was_written_earlier_is_planned(
    file: Path, maze: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (maze / "train.py").write_text(file.read_text().replace("my_task", "maze"))
    found = runpy.run_path("train.py")
    assert found["first_policy"] is first_policy and found["main"] is recipe
    recipe("maze", ["--plan"], preset={**found["PRESET"], "model_name_or_path": "tiny"})
    assert "maze" in capsys.readouterr().out


def test_earlier_names_are_found_where_they_were(maze: Path) -> None:
    assert check_task("maze", episodes=2).told()
