"""A wrong command line ends with status 2, a few lines and no traceback, before anything heavy is imported."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from alignopsd_trl.commands.launch import recipe
from alignopsd_trl.commands.launch.arguments import everything, parse
from alignopsd_trl.commands.launch.recipe import HELP
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.environments.base import EnvironmentsDown
from alignopsd_trl.methods import method_names
from alignopsd_trl.runs.health import RunStopped

ROOT = Path(__file__).parents[2]

WRONG = [
    (["--history", "all"], "history='all': choose one of "),
    (["--rounds", "0"], "rounds=0 must be 1 or more"),
    (["--updates_per_round", "0"], "updates_per_round=0 must be 1 or more"),
    (["--tasks_per_round", "some"], "tasks_per_round='some' must be a whole number"),
    (["--environment", "webshop_tyny"], "did you mean 'webshop_tiny'?"),
    (["--environment", "my.module"], "unknown"),
    (["--environment_options", "{bad"], "environment_options='{bad' is no JSON"),
    (["--environment_options", "[1]"], "environment_options='[1]' must be a JSON mapping"),
    (["--method_options", "{bad"], "method_options='{bad' is no JSON"),
    (["--method_options", "5"], "method_options='5' must be a JSON mapping"),
    (["--model", "/no/such"], "model='/no/such' is no folder"),
    (["--model=/no/such"], "model='/no/such' is no folder"),
    (["--skill_bank", "no_hints:hint"], "skill bank 'no_hints:hint': there is no module 'no_hints'"),
    (["--config", "/no.yaml"], "--config /no.yaml: No such file"),
    (["--rounds", "2", "--max_steps=3"], "--rounds and --max_steps are both given"),
    (["--lora_r", "0", "--use_peft"], "lora_r=0 must be 1 or more"),
    (["--gpu_gib", "-4", "--plan"], "gpu_gib=-4.0 must be greater than 0"),
    (["--plan_for", "fsdp9", "--plan"], "plan_for=fsdp9: No such file"),
    (["--preset", "mine"], "preset='mine': choose one of 'paper', 'released'"),
    *(
        [(["--report_to", "trackio"], "pip install 'alignopsd-trl[trackio]'")]
        if importlib.util.find_spec("trackio") is None
        else []
    ),
    (["--output_dir", f"{__file__}/x"], "choose another output_dir"),
    (["--learnig_rate", "1"], "--learnig_rate is unknown; did you mean '--learning_rate'?"),
    (["grpo"], "what is 'grpo' meant for"),
    (["--learning_rate", "fast"], "learning_rate='fast' must be a number"),
]


def _status(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> str | int | None:
    monkeypatch.setattr(sys, "argv", ["webshop_tiny.py", *argv])
    with pytest.raises(SystemExit) as end:
        recipe.main("webshop_tiny")
    return end.value.code


@pytest.mark.parametrize(("argv", "words"), WRONG)
def test_a_wrong_value_is_named_with_its_remedy(
    argv: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _status(argv, monkeypatch) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) <= 3 and "Traceback" not in said
    with pytest.raises(ValueError, match="."):
        recipe.main("webshop_tiny", argv)
    monkeypatch.setattr(sys, "argv", ["webshop_tiny.py", *argv, "--traceback"])
    with pytest.raises(ValueError, match="."):
        recipe.main("webshop_tiny")


YAML = [
    (b"method: \xfc", "my.yaml: byte 9 is no UTF-8; save the file in that encoding"),
    (b"learning_rate: [1", "line 1"),
    (b"- a\n", "must hold a mapping"),
    (b"learning_rate: fast", "learning_rate='fast' must be a number"),
    (b"save_steps: [1, 2]", "save_steps=[1, 2] must be a number"),
    (b"num_generations: 2.5", "num_generations=2.5 must be a whole number"),
    (b"alpha_max: yes", "alpha_max=True must be a number"),
    (b"method: grpo\nmethod: rlsd", "line 2: 'method' stands there twice"),
    (b"learnig_rate: 1.0", "learnig_rate is unknown; did you mean 'learning_rate'?"),
]


@pytest.mark.parametrize(("text", "words"), YAML)
def test_a_wrong_yaml_file_is_named_with_its_field(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "my.yaml").write_bytes(text)
    with pytest.raises(ValueError) as error:
        parse("webshop_tiny", ["--config", str(tmp_path / "my.yaml")])
    assert "my.yaml" in str(error.value) and words in str(error.value)


def test_the_help_page_names_flags_that_exist_and_all_methods() -> None:
    whole = everything()
    for word in HELP.replace(",", " ").split():
        if word.startswith("--") and word[2:] not in "FLAG help traceback config config_file files model".split():
            assert f"{word} " in whole, word
    trained = [name for name in method_names() if name not in ("vanilla", "skill_prompt")]
    for name in trained:
        assert name in HELP and name in whole


def test_a_run_that_stops_ends_with_status_1_and_a_bug_names_the_file_with_its_calls(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "mine").write_text("kept")
    (tmp_path / f"alignopsd-{os.getpid()}.txt").symlink_to(tmp_path / "mine")  # as somebody else might lay it
    for error, status in ((RunStopped("why"), 1), (EnvironmentsDown("gone"), 1), (KeyboardInterrupt(), 130)):
        with pytest.raises(SystemExit) as end, reported("x"):
            raise error
        assert end.value.code == status and "--resume_from_checkpoint True" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end, reported("x"):
        raise ValueError("a bug in the middle of a run")
    told = capsys.readouterr().err
    assert end.value.code == 1 and told.startswith("x: unexpected ValueError: a bug in the middle of a run\n")
    assert (tmp_path / "mine").read_text() == "kept"
    calls = Path(told.split("The calls are in ")[1].split(";")[0])
    assert calls.parent == tmp_path and calls.stat().st_mode & 0o077 == 0
    assert calls.read_text().startswith("Traceback") and "a bug in the middle of a run" in calls.read_text()
    calls.unlink()
    with pytest.raises(SystemExit), reported("x"), setup():
        raise ValueError("wrong")


def test_debug_is_transformers_own(tmp_path: Path) -> None:
    given = ["--debug", "underflow_overflow", "--use_cpu", "True", "--output_dir", str(tmp_path)]
    assert [str(one.value) for one in parse("webshop_tiny", given)[1].debug] == ["underflow_overflow"]  # ty: ignore[missing-attribute]


def test_a_plan_checks_what_a_run_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--plan", "--use_cpu", "True", "--output_dir", str(tmp_path / "run")]
    assert recipe.main("webshop_tiny", [*own, "--rounds", "3", "--hub_token", "hf_secret"]) is None
    printed = capsys.readouterr().out
    assert "hf_secret" not in printed
    assert "not as in the preset: rounds=3" in printed and "skill bank" in printed and "output folder" in printed
    broken = tmp_path / "bank.json"
    broken.write_text("{}")
    for wrong, words in (
        (["--skill_bank", str(broken)], "bank.json"),
        (["--encoder", str(tmp_path)], "no modules.json"),
        (["--method", "vanilla"], "trains nothing"),
        (["--panel", "tset"], "panel='tset'"),
        (["--train_split", "tarin"], "train_split='tarin'"),
        (["--resume_from_checkpoint", str(tmp_path / "run" / "checkpoint-3")], "checkpoint-3' has no readable"),
        (["--resume_from_checkpoint", str(tmp_path / "checkpoint-3")], "checkpoint-3' is no checkpoint in output_dir"),
    ):
        with pytest.raises(ValueError, match=words):
            recipe.main("webshop_tiny", [*own, *wrong])


def test_a_plan_is_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recipe.main("webshop_tiny", ["--plan", "--output_dir", str(tmp_path)]) is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30 and lines[0] == "not as in the preset: nothing" and lines[-1].endswith("--all")
