import sys
from pathlib import Path

import pytest

from alignopsd_trl.commands.own_task.check.task_check import check_task
from alignopsd_trl.commands.own_task.task import find_task

FOLDER = Path(__file__).resolve().parents[1] / "six_tasks"
TASKS = ["account", "adventure", "booking", "cards", "form", "parcels", "sorting"]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_sound_and_its_player_needs_the_skill(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in (task, "generated"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    report = check_task(task, player=f"{task}:play")
    assert not report.ruined, report.told()
    assert {one.about for one in report.findings} <= {"panel"}, report.told()


def test_parcels_have_categories_as_coarse_as_counters_or_as_fine_as_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    coarse, fine = (find_task("parcels", {"category": one}).rows("train") for one in ("counter", "rule"))
    assert len({row["category"] for row in coarse}) == 3 and len({row["category"] for row in fine}) == 12
    assert [row | {"category": ""} for row in coarse] == [row | {"category": ""} for row in fine]
