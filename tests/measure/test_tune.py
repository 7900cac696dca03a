"""``alignopsd measure RECIPE``: the lift and what follows from it, the command on a known game, bad input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fakes import corridor
from fakes.own_task import fails

from alignopsd_trl.commands import cli
from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.launch.presets import preset
from alignopsd_trl.commands.measure import measurement, tune
from alignopsd_trl.commands.measure.commands import run_measure as main
from alignopsd_trl.commands.measure.metrics import EVERYTHING, successes
from alignopsd_trl.commands.measure.tune import advise, yaml_text
from alignopsd_trl.common.statistics import Interval, for_several


def test_lift_is_paired_by_task_and_told_by_category() -> None:
    without = {"a": [0.0, 1.0], "b": [1.0, 1.0], "c": [0.0], "d": [0.0, 0.0], "gone": [1.0]}
    skilled = {"a": [1.0, 1.0], "b": [1.0], "c": [1.0], "d": [0.0], "new": [1.0]}
    found = successes(without, skilled, dict.fromkeys("abc", "x") | {"d": "y", "gone": "x"}, "success")
    assert list(found) == [EVERYTHING, "x", "y"] and [one.tasks for one in found.values()] == [4, 3, 1]
    everything = found[EVERYTHING]
    assert everything.without.value == pytest.approx(1.5 / 4) and everything.skilled.value == pytest.approx(3 / 4)
    assert everything.lift.value == pytest.approx(1.5 / 4) and everything.lift.low < 1.5 / 4 < everything.lift.high
    assert found["x"].lift.value == pytest.approx(0.5) and math.isnan(found["y"].lift.low)
    same = {str(number): [float(number % 2)] for number in range(8)}
    assert successes(same, same, dict.fromkeys(same, "one"), "reward")[EVERYTHING].lift == Interval(0.0, 0.0, 0.0)
    assert all(-1 <= one.lift.low and one.skilled.high <= 1 for one in found.values() if one.tasks > 2)


def test_many_settings_need_more_to_be_told_apart() -> None:
    one = Interval(0.1, 0.02, 0.18)
    assert for_several(one, 1, 12) == Interval(0.1, pytest.approx(0.02), pytest.approx(0.18))
    wide = for_several(one, 10, 12)
    assert wide.low < 0 < wide.value == 0.1 and wide.high - 0.1 == pytest.approx(0.1 - wide.low)
    assert for_several(one, 10, 2) == one


CLEAR, WIDE = Interval(0.2, 0.1, 0.3), Interval(0.2, -0.1, 0.5)
FEW_TASKS = Interval(0.2)
TAUGHT = {
    "method": "align_opsd",
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,
    "distribution_rounds": 6,
    "teacher_model_kind": "base",
    "num_iterations": 4,
}


@pytest.mark.parametrize(
    ("lift", "ceiling", "expected", "told"),
    [
        (WIDE, 0.7, {"method": "grpo"}, "does not clearly lift"),
        (FEW_TASKS, 0.7, {"method": "grpo"}, "does not clearly lift"),
        (Interval(-0.2, -0.3, -0.1), 0.7, {"method": "grpo"}, "does not clearly lift"),
        (CLEAR, 0.33, {"method": "grpo"}, "only to 33%"),
        (CLEAR, 0.7, TAUGHT, "alignopsd demonstrate 'my task' --policy tiny_trips"),
        (CLEAR, math.inf, TAUGHT, "reward takes it further: method=align_opsd"),
    ],
)
def test_advice_follows_from_what_is_clear_and_is_a_file_that_train_takes(
    lift: Interval, ceiling: float, expected: dict, told: str, tmp_path: Path
) -> None:
    settings, reason = advise(lift, ceiling, 12, ("my task", "tiny_trips"))
    assert settings == expected and told in reason and ("Cheaper" in reason) is (expected == TAUGHT)
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml_text("webshop_tiny", settings, reason))
    _, args, _ = parse("webshop_tiny", ["--config", str(file), "--output_dir", str(tmp_path)])
    assert {name: getattr(args, name) for name in expected} == expected


def test_a_path_with_a_line_break_adds_no_setting() -> None:
    assert yaml.safe_load(yaml_text("a\nlearning_rate: 1", {"seed": 1}, "b\nbeta: 2")) == {"seed": 1}


# The command


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corridor.save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def game(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a recipe of the corridor, ``walk``, and a policy for it."""
    monkeypatch.setitem(sys.modules, "corridor_game", corridor)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    preset = {
        "environment": "corridor_game",
        "model_name_or_path": str(policy),
        "encoder": "lexical",
        "num_generations": 8,
        "max_prompt_length": 600,
        "max_completion_length": 14,
        "skill_tokens": 20,
        "rounds": 2,
        "use_cpu": True,
        "bf16": False,
    }
    (tmp_path / "walk.py").write_text(f"PRESET = {preset!r}\n")
    yield tmp_path
    sys.modules.pop("walk", None)


FEW = ["walk", "--seed", "1", "--quiet", "--set", "temperature=0.9"]


@pytest.mark.full
def test_the_command_measures_a_recipe_of_ones_own_and_goes_on_with_more_tasks(
    game: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "BATCH", 6)
    found = main([*FEW, "--tasks", "6"])
    folder = game / "outputs" / "measure_walk"
    assert {path.name for path in folder.iterdir()} == {
        ".alignopsd.json",
        "parts",
        "report.md",
        "tune.json",
        "tuned.yaml",
    }
    assert json.loads((folder / "tune.json").read_text()) == found
    assert found["tasks"] == found["success"]["all"]["tasks"] == 6
    assert found["episodes"] == found["skilled_episodes"] == 48
    told = capsys.readouterr().out
    assert (folder / "report.md").read_text() in told and "train walk --config outputs/measure_walk/tuned.yaml" in told
    settings = {"temperature": 0.9, **found["advice"]["settings"]}
    assert yaml.safe_load((folder / "tuned.yaml").read_text()) == settings
    parse("walk", ["--config", str(folder / "tuned.yaml"), "--output_dir", "out"])
    played, play = [], measurement.play_groups
    monkeypatch.setattr(measurement, "play_groups", lambda *given: played.append(len(given[1])) or play(*given))
    assert main([*FEW, "--tasks", "6"])["success"] == found["success"] and not played
    assert main([*FEW, "--tasks", "12"])["episodes"] == 96 and played == [6, 6]
    with pytest.raises(ValueError, match="holds a measurement with temperature=0.9, this one has 1.0; choose another"):
        main([*FEW[:-2], "--tasks", "6"])


def test_a_recipe_without_skills_is_refused(game: Path) -> None:
    with pytest.raises(ValueError, match="has no skills, which a teacher needs: give --skill_bank"):
        main([*FEW, "--environment_options", '{"unskilled": true}'])


@pytest.mark.full
def test_a_written_task_is_tuned_by_its_name_and_trains_with_what_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    cli.main(["new", "vault", "--model", "tiny"])
    fails(["measure", "vault"], "vault/policy' is no folder", "alignopsd warm_start", capsys=capsys)
    monkeypatch.chdir(tmp_path / "vault")
    cli.main(["demonstrate", "vault", "--episodes", "6"])
    cli.main(["warm_start", "vault", "--max_steps", "2", "--tasks", "0"])
    cli.main(["measure", "vault", "--tasks", "2", "--quiet"])
    written = Path("outputs", "measure_vault", "tuned.yaml")
    assert "# The skill does not clearly lift the policy" in written.read_text()
    assert "train with it: alignopsd train vault --config outputs/measure_vault/tuned.yaml" in capsys.readouterr().out
    for own in (None, preset("vault")):  # alignopsd train vault, python train.py
        recipe, args, model = parse("vault", ["--config", str(written)], own)
        assert (recipe.environment, args.method, args.privileged_siblings) == ("vault", "grpo", 0)
        assert model.model_name_or_path == str(tmp_path / "vault" / "policy")
    for name in {one for one in sys.modules if one.startswith("vault")} - known:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: RECIPE"),
        (["webshop_tiny", "--environment", "x"], "RECIPE names its environment"),
        (["webshop_tny"], "did you mean 'webshop_tiny'?"),
        (["webshop_tiny", "--tasks", "1"], "--tasks 1 must be 2 or more"),
        (["webshop_tiny", "--rollouts", "6"], "--rollouts is about credit"),
        (["webshop_tiny", "--methods", "grpo"], "--methods is about credit"),
        (["webshop_tiny", "--each_skill", "--everywhere"], "--everywhere is about credit"),
        (["webshop_tiny", "--each_skill", "--episodes", "0"], "--episodes 0 must be 1 or more"),
        (["webshop_tiny", "--set", "temperature"], "--set temperature is not NAME=VALUE"),
        (["webshop_tiny", "--set", "temprature=1"], "'temprature' is no field of AlignOPSDConfig"),
        (["webshop_tiny", "--model", "no/such/folder"], "is no folder"),
        (["webshop_tiny", "--output", f"{__file__}/out"], "is a file; choose another folder"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fails(["measure", *argv], words, capsys=capsys, lines=3)
    assert not (tmp_path / "outputs").exists()
