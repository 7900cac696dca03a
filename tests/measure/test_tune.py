"""``alignopsd measure RECIPE``: the ranking and what follows from it, the command on a known game, bad input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from fakes import corridor

from alignopsd_trl import cli
from alignopsd_trl.common.statistics import Interval, for_several
from alignopsd_trl.launch.arguments import parse
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.measure import commands, measurement, tune
from alignopsd_trl.measure.commands import run_measure as main
from alignopsd_trl.measure.metrics import Turns, agreement
from alignopsd_trl.measure.ranking import ABOVE, BELOW, EVERYTHING, UNTOLD, advise, rank, successes
from alignopsd_trl.measure.table import measured_rows, turns_of
from alignopsd_trl.measure.tune import yaml_text


def turns(tasks: int, seed: int) -> Turns:
    """Four turns of each of two trajectories a task; values without noise."""
    count = 8 * tasks
    values = np.random.default_rng(seed).normal(size=count)
    trajectory = np.arange(count) // 4
    outcome = np.where(trajectory % 2, -1.0, 1.0)
    return Turns(np.arange(count) // 8, trajectory, outcome, values, np.full(count, 0.01), np.stack([values, values]))


def test_lift_is_paired_by_task_and_told_by_category() -> None:
    without = {"a": [0.0, 1.0], "b": [1.0, 1.0], "c": [0.0], "d": [0.0, 0.0], "gone": [1.0]}
    skilled = {"a": [1.0, 1.0], "b": [1.0], "c": [1.0], "d": [0.0], "new": [1.0]}
    found = successes(without, skilled, dict.fromkeys("abc", "x") | {"d": "y", "gone": "x"})
    assert list(found) == [EVERYTHING, "x", "y"] and [one.tasks for one in found.values()] == [4, 3, 1]
    everything = found[EVERYTHING]
    assert everything.without.value == pytest.approx(1.5 / 4) and everything.skilled.value == pytest.approx(3 / 4)
    assert everything.lift.value == pytest.approx(1.5 / 4) and everything.lift.low < 1.5 / 4 < everything.lift.high
    assert found["x"].lift.value == pytest.approx(0.5) and math.isnan(found["y"].lift.low)
    same = {str(number): [float(number % 2)] for number in range(8)}
    assert successes(same, same, dict.fromkeys(same, "one"))[EVERYTHING].lift == Interval(0.0, 0.0, 0.0)
    assert all(-1 <= one.lift.low and one.skilled.high <= 1 for one in found.values() if one.tasks > 2)


def test_settings_are_ranked_by_their_cosine_and_told_apart_on_the_same_tasks() -> None:
    held = turns(24, 0)
    noise = np.random.default_rng(1).normal(size=len(held.task))
    credit = {
        "grpo": held.advantage + 1.5 * noise,
        "as good": held.advantage + 1.5 * noise + 1e-3 * np.random.default_rng(2).normal(size=len(noise)),
        "best": held.advantage,
        "worst": -held.advantage,
    }
    ranking = rank(agreement(held, credit, "grpo"), held.tasks)
    assert [one.label for one in ranking][0] == "best" and [one.label for one in ranking][-1] == "worst"
    assert {one.label: one.verdict for one in ranking} == {
        "best": ABOVE,
        "as good": UNTOLD,
        "grpo": UNTOLD,
        "worst": BELOW,
    }
    assert rank({}, 0) == []


def test_many_settings_need_more_to_be_told_apart() -> None:
    one = Interval(0.1, 0.02, 0.18)
    assert for_several(one, 1, 12) == Interval(0.1, pytest.approx(0.02), pytest.approx(0.18))
    wide = for_several(one, 10, 12)
    assert wide.low < 0 < wide.value == 0.1 and wide.high - 0.1 == pytest.approx(0.1 - wide.low)
    assert for_several(one, 10, 2) == one
    figures = {"grpo": {"cosine": one}}
    figures |= {str(n): {"cosine": one, "cosine_minus_grpo": one} for n in range(10)}
    assert {standing.verdict for standing in rank(figures, 12)} == {UNTOLD}
    assert rank({name: figures[name] for name in ("grpo", "1")}, 12)[1].verdict in (ABOVE, UNTOLD)
    assert {s.label: s.verdict for s in rank({name: figures[name] for name in ("grpo", "1")}, 12)}["1"] == ABOVE


CLEAR, WIDE = Interval(0.2, 0.1, 0.3), Interval(0.2, -0.1, 0.5)
NONE = Interval(0.0, math.nan, math.nan)
FLAT = {"grpo": {"cosine": CLEAR}}
SPREAD = FLAT | {"align_opsd rectify=False": {"cosine": CLEAR, "cosine_minus_grpo": CLEAR}}
SETTINGS = {"grpo": {"method": "grpo"}, "align_opsd rectify=False": {"method": "align_opsd", "rectify": False}}
TAUGHT = {
    "method": "align_opsd",
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,
    "teacher_model_kind": "base",
    "num_iterations": 4,
}


@pytest.mark.parametrize(
    ("figures", "lift", "expected", "told"),
    [
        ({}, None, {"method": "grpo"}, ["nothing can be told from GRPO here: no task's siblings differ", "no skills"]),
        (
            FLAT,
            WIDE,
            {"method": "grpo"},
            ["nothing can be told from GRPO here, so it is GRPO's", "does not clearly lift"],
        ),
        ({}, NONE, {"method": "grpo"}, ["nothing can be told", "does not clearly lift"]),
        (FLAT, CLEAR, TAUGHT, ["nothing can be told", "play: method=grpo, privileged_siblings=4"]),
        (SPREAD, CLEAR, TAUGHT | {"rectify": False}, ["+0.20 [+0.10, +0.30]", "rectify=False, auxiliary_loss=distr"]),
        (SPREAD, Interval(-0.2, -0.3, -0.1), {"method": "align_opsd", "rectify": False}, ["clear of 0", "so none"]),
    ],
)
def test_advice_follows_from_what_is_clear_and_is_a_file_that_train_takes(
    figures: dict, lift: Interval | None, expected: dict, told: list[str], tmp_path: Path
) -> None:
    advice = advise(rank(figures, 12), SETTINGS, lift, siblings=8)
    assert advice.settings == expected and len(advice.reasons) == 2
    assert all(words in reason for words, reason in zip(told, advice.reasons, strict=True))
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml_text("webshop_tiny", advice.settings, advice))
    _, args, _ = parse("webshop_tiny", ["--config", str(file), "--output_dir", str(tmp_path)])
    assert {name: getattr(args, name) for name in expected} == expected


def table(one: Turns) -> pd.DataFrame:
    """Turns as a measurement's table has them, with equal names of tasks in every table."""
    columns = {"task": one.task, "rollout": one.trajectory % 2, "outcome_advantage": one.outcome}
    halves = {"a_mc_half_0": one.halves[0], "a_mc_half_1": one.halves[1]}
    return pd.DataFrame({**columns, "a_mc": one.advantage, "a_mc_error": one.error, **halves})


def test_batches_of_tasks_are_joined_as_different_tasks() -> None:
    parts = [turns(2, 0), turns(3, 1)]
    both = turns_of(measured_rows([table(one) for one in parts]))
    assert both.tasks == 5 and len(np.unique(both.trajectory)) == 10 and both.halves.shape == (2, 40)
    assert both.task.tolist() == (np.arange(40) // 8).tolist()
    assert turns_of(measured_rows([table(parts[0])])).trajectory.tolist() == parts[0].trajectory.tolist()


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


FEW = ["--seed", "1", "--tasks", "12", "--rollouts", "2", "--methods", "gagpo,rlsd", "--quiet"]


@pytest.mark.full
def test_the_command_measures_a_recipe_of_ones_own_and_goes_on_with_more_tasks(
    game: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "BATCH", 6)
    found = main(["walk", *FEW, "--vary", "rlsd.band=0.4"])
    folder = game / "outputs" / "measure_walk"
    assert {path.name for path in folder.iterdir()} == {
        ".alignopsd.json",
        "parts",
        "report.md",
        "tune.json",
        "tuned.yaml",
    }
    assert json.loads((folder / "tune.json").read_text()) == found
    assert set(found["figures"]) == {"grpo", "gagpo", "rlsd", "rlsd band=0.4"} == set(found["settings"])
    assert found["settings"]["rlsd band=0.4"] == {"method": "rlsd", "method_options": {"band": 0.4}}
    assert found["tasks"] == 12 and found["episodes"] == found["skilled_episodes"] == 96
    assert found["success"]["all"]["tasks"] == 12 and 0 <= found["teacher_agreement"]["value"] <= 1
    told = capsys.readouterr().out
    assert (folder / "report.md").read_text() in told and "train walk --config outputs/measure_walk/tuned.yaml" in told
    assert yaml.safe_load((folder / "tuned.yaml").read_text()) == found["advice"]["settings"]
    parse("walk", ["--config", str(folder / "tuned.yaml"), "--output_dir", "out"])

    def no_play(*given: object) -> None:
        raise AssertionError("played again")

    for module in (measurement, tune):
        monkeypatch.setattr(module, "play_groups", no_play)
    again = main(["walk", *FEW, "--vary", "rlsd.band=0.4"])
    assert again["figures"] == found["figures"] and again["success"] == found["success"]
    refusal = "holds a measurement with rollouts=2, this one has 3; choose another --output"
    with pytest.raises(ValueError, match=refusal):
        main(["walk", *FEW, "--rollouts", "3"])


@pytest.mark.full
def test_time_and_methods_without_a_teacher(game: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "BATCH", 2)
    found = main(["walk", *FEW, "--methods", "gigpo", "--minutes", "0.001", "--set", "temperature=0.9"])
    assert found["tasks"] == 2 and found["teacher_agreement"] is None and found["success"]["all"]["tasks"] == 2
    written = yaml.safe_load((game / "outputs" / "measure_walk" / "tuned.yaml").read_text())
    assert written["temperature"] == 0.9


@pytest.mark.full
def test_the_shipped_shop_is_measured(tmp_path: Path) -> None:
    found = main(
        [
            "webshop_tiny",
            "--tasks",
            "3",
            "--rollouts",
            "1",
            "--set",
            "num_generations=4",
            "--quiet",
            "--output",
            str(tmp_path),
        ]
    )
    labels = [one["label"] for one in found["ranking"]]
    assert {"grpo", "hgpo", "graphgpo", "gagpo", "align_opsd rectify=False credit_spread=0.4"} <= set(labels)
    assert found["settings"]["align_opsd rectify=False credit_spread=0.4"] == {
        "method": "align_opsd",
        "rectify": False,
        "credit_spread": 0.4,
    }
    cosines = [one["cosine"]["value"] for one in found["ranking"]]
    assert cosines == sorted(cosines, key=lambda one: -math.inf if one is None else -one)


@pytest.mark.full
def test_a_written_task_is_tuned_by_its_name_and_trains_with_what_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    cli.main(["new", "vault", "--model", "tiny"])
    with pytest.raises(SystemExit):
        cli.main(["measure", "vault"])
    assert "vault/policy' is no folder" in (told := capsys.readouterr().err) and "alignopsd warm_start" in told
    monkeypatch.chdir(tmp_path / "vault")
    cli.main(["demonstrate", "vault", "--episodes", "6"])
    cli.main(["warm_start", "vault", "--max_steps", "2", "--tasks", "0"])
    cli.main(["measure", "vault", "--tasks", "2", "--rollouts", "1", "--methods", "gigpo", "--quiet"])
    written = Path("outputs", "measure_vault", "tuned.yaml")
    assert "# Credit: nothing can be told from GRPO here" in written.read_text()
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
        (["webshop_tiny", "--rollouts", "0"], "--rollouts 0 must be 1 or more"),
        (["webshop_tiny", "--minutes", "0"], "--minutes 0 must be more than 0"),
        (["webshop_tiny", "--minutes", "soon"], "argument --minutes: invalid float value: 'soon'"),
        (["webshop_tiny", "--set", "temperature"], "--set temperature is not NAME=VALUE"),
        (["webshop_tiny", "--set", "temprature=1"], "'temprature' is no field of AlignOPSDConfig"),
        (["webshop_tiny", "--methods", "gripo"], "'gripo'"),
        (["webshop_tiny", "--methods", "vanilla"], "trains nothing"),
        (["webshop_tiny", "--methods", "skill_grpo"], "skill_grpo"),
        (["webshop_tiny", "--methods", "gigpo", "--vary", "rectify=false"], "not among the methods"),
        (["webshop_tiny", "--model", "no/such/folder"], "is no folder"),
        (["webshop_tiny", "--output", f"{__file__}/out"], "is a file; choose another folder"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["measure", *argv])
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and words in told and "Traceback" not in told and told.count("\n") <= 3
    assert not (tmp_path / "outputs").exists()
