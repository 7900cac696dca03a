"""Nothing starts that can't end well: the list of checks, asked by the trainer, by ``train`` and by ``plan`` alike."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.own_task import fails
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from alignopsd_trl import AlignOPSDConfig, AlignOPSDTrainer
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.environments.loading import load


def _copy(folder: Path, *without: str) -> Path:
    made = folder / f"without {' '.join(without)}"
    shutil.copytree(resolve_model("tiny"), made, ignore=shutil.ignore_patterns(*without))
    return made


def _cut(folder: Path) -> Path:
    made = folder / "cut"
    shutil.copytree(resolve_model("tiny"), made)
    weights = made / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return made


def _four(folder: Path) -> str:
    (folder / "skills_of_four.py").write_text("def hint(a, b, c, d):\n    return a\n")
    return "skills_of_four:hint"


def _replaced(name: str, content: str) -> Any:
    def made(folder: Path) -> Path:
        copied = _copy(folder, "none")
        (copied / name).write_text(content)
        return copied

    return made


WRONG = {
    "max_steps 0": ({"max_steps": 0}, "max_steps=0 must be 1 or more"),
    "max_steps -5": ({"max_steps": -5}, "max_steps=-5 must be 1 or more"),
    "learning rate": ({"learning_rate": -1.0}, "learning_rate=-1.0 must not be negative"),
    "temperature": ({"temperature": 0.0}, "temperature=0.0 must be 0.001 or more"),
    "weight decay": ({"weight_decay": -0.5}, "weight_decay=-0.5 must not be negative"),
    "endless temperature": ({"temperature": float("inf")}, "temperature=inf must be a finite number"),
    "no rate": ({"learning_rate": float("nan")}, "learning_rate=nan must be a finite number"),
    "seed": ({"seed": -1}, "seed=-1 must lie in [0, 4.29497e+09]"),
    "unknown tracker": ({"report_to": "trackoi"}, "report_to='trackoi' is unknown; did you mean 'trackio'?"),
    "adam_beta2": ({"adam_beta2": 1.0}, "adam_beta2=1.0 must lie in [0, 1)"),
    "adam_epsilon": ({"adam_epsilon": -1e-8}, "adam_epsilon=-1e-08 must be greater than 0"),
    "top_p": ({"top_p": 1.5}, "top_p=1.5 must lie in [0, 1]"),
    "method that trains nothing": ({"method": "vanilla"}, "method='vanilla' trains nothing"),
    "unknown method": ({"method": "grop"}, "did you mean 'grpo'?"),
    "no tokenizer": (
        {"model": lambda folder: _copy(folder, "tokenizer*", "vocab*", "special*")},
        "holds no tokenizer (tokenizer.json)",
    ),
    "no weights": ({"model": lambda folder: _copy(folder, "*.safetensors")}, "holds no weights"),
    "no config": ({"model": lambda folder: _copy(folder, "config.json")}, "holds no config.json"),
    "cut tokenizer": ({"model": _replaced("tokenizer.json", '{"version": ')}, "tokenizer.json is damaged (Expecting"),
    "cut config": ({"model": _replaced("config.json", '{"mod')}, "config.json is damaged"),
    "tokenizer_config": (
        {"model": _replaced("tokenizer_config.json", "[]")},
        "tokenizer_config.json is damaged",
    ),
    "cut weights": ({"model": _cut}, "model.safetensors is cut short"),
    "no such model": ({"model": "/no/such"}, "model='/no/such' is no folder"),
    "function of four arguments": ({"skill_bank": _four}, "hint"),
    "unknown bank": ({"skill_bank": "webshp"}, "did you mean 'webshop'?"),
    "unknown encoder": ({"encoder": "lexicl"}, "encoder='lexicl' is neither an existing folder nor a Hub id"),
    "folder without encoder": ({"encoder": lambda folder: folder}, "no modules.json"),
    "too few tasks": ({"per_device_train_batch_size": 8 * 4000}, "tasks, but one round needs 4000"),
    "tracker of others": ({"report_to": "mlflow"}, "the package mlflow is not installed; pip install mlflow"),
    "top_k": ({"top_k": -5}, "top_k=-5 must not be negative"),
    "no tracker": ({"report_to": "wandb"}, "pip install 'alignopsd-trl[wandb]'"),
}


@pytest.fixture
def wrong(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, str]:
    monkeypatch.setattr("alignopsd_trl.checks.intended.find_spec", lambda name: None)
    monkeypatch.syspath_prepend(tmp_path)
    given, said = WRONG[request.param]
    return {name: str(one(tmp_path)) if callable(one) else one for name, one in given.items()}, said


@pytest.mark.parametrize("wrong", WRONG, indirect=True)
def test_the_trainer_refuses_it_by_the_names_of_arguments(wrong: tuple[dict, str], tmp_path: Path) -> None:
    given, said = wrong
    parts = {"model": "tiny", "skill_bank": "webshop", "encoder": "lexical"}
    mine = parts | {name: value for name, value in given.items() if name in parts}
    options = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 8, "report_to": "none"}
    options |= {name: value for name, value in given.items() if name not in parts}
    suite = load("webshop_tiny")
    with pytest.raises(ValueError) as error:
        AlignOPSDTrainer(
            args=AlignOPSDConfig(str(tmp_path / "run"), **options),
            environment_factory=suite.factory,
            train_dataset=suite.tasks("train"),
            **mine,
        )
    assert said in str(error.value)


@pytest.mark.parametrize("plan", [["--plan"], []], ids=["plan", "train"])
@pytest.mark.parametrize("wrong", WRONG, indirect=True)
def test_plan_and_train_refuse_it_in_the_same_words(
    wrong: tuple[dict, str],
    plan: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, said = wrong
    monkeypatch.setattr(sys, "argv", [])
    flags = [f"--{name}={value}" for name, value in given.items()]
    if "per_device_train_batch_size" in given:
        flags = ["--tasks_per_round", "4000"]
    fails(["train", "webshop_tiny", *plan, "--output_dir", str(tmp_path / "run"), *flags], said, capsys=capsys)
    assert not (tmp_path / "run").exists()


def _lacking(folder: Path, *names: str) -> Path:
    made = _copy(folder, "none")
    weights = load_file(made / "model.safetensors")
    save_file({name: weight for name, weight in weights.items() if name not in names}, made / "model.safetensors")
    return made


def _trainer(model: Path | str, folder: Path, **options: Any) -> AlignOPSDTrainer:
    suite, peft = load("webshop_tiny"), options.pop("peft_config", None)
    plain = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 8, "report_to": "none", "method": "grpo"}
    return AlignOPSDTrainer(
        model=str(model),
        args=AlignOPSDConfig(str(folder / "run"), **plain | options),
        environment_factory=suite.factory,
        train_dataset=suite.tasks("train"),
        peft_config=peft,
    )


@pytest.mark.parametrize("peft_config", [None, LoraConfig(target_modules=["q_proj"])], ids=["full", "LoRA"])
def test_weights_that_are_not_in_the_files_are_not_made_up(tmp_path: Path, peft_config: LoraConfig | None) -> None:
    missing = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(ValueError, match=rf"lacks 1 of \d+ weights, the first {missing}; copy the model again"):
        _trainer(_lacking(tmp_path, missing), tmp_path, peft_config=peft_config)


def test_an_evaluation_makes_no_weights_up_either(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    argv = ["evaluate", "--environment", "webshop_tiny", "--limit", "1", "--model"]
    fails([*argv, str(_lacking(tmp_path, "model.norm.weight"))], "the first model.norm.weight", capsys=capsys)


def test_a_whole_model_with_an_adapter_is_taken(tmp_path: Path) -> None:
    _trainer("tiny", tmp_path, peft_config=LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]))


def test_turns_beyond_the_models_positions_are_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    _trainer("tiny", tmp_path, max_prompt_length=1000, max_completion_length=64)
    assert "made for 1024 positions" in capsys.readouterr().out
    _trainer("tiny", tmp_path, max_prompt_length=900, max_completion_length=64)
    assert "positions" not in capsys.readouterr().out
