from alignopsd_trl.commands.own_task.check.task_check import check_task


def test_nothing_ruins_a_run():
    report = check_task("my_task")
    assert not report.ruined, report.told()
