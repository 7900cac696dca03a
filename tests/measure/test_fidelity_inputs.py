"""What users bring to the instrument: tokenizers without padding, adapters, classes of TRL's convention, episodes that
fail, an environment that was mended since."""

from __future__ import annotations

import json
import random
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from fakes import corridor, tool_classes
from fakes.toy import build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from alignopsd_trl.commands.launch.evaluate import main as evaluate
from alignopsd_trl.commands.measure.commands import run_measure as main
from alignopsd_trl.common.models import load_tokenizer
from alignopsd_trl.environments import Suite, TaskPanel
from alignopsd_trl.rollout.monte_carlo.replays import ReplayError


def _save(folder: Path, **tokens: str | None) -> Path:
    """A policy of random weights whose tokenizer is loaded as it was saved (Qwen's would get a padding token)."""
    tokenizer = build_tokenizer()
    for name, value in tokens.items():
        setattr(tokenizer, name, value)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(build_tokenizer()), **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "corridor_game", corridor)


def _measure(model: Path, output: Path, *more: str, environment: str = "corridor_game") -> dict:
    limits = ["--set", "max_prompt_length=600", "--set", "max_completion_length=14", "--set", "skill_tokens=20"]
    few = ["--tasks", "4", "--rollouts", "2", "--quiet"]
    return main(["--model", str(model), "--environment", environment, "--output", str(output), *limits, *few, *more])


def test_a_tokenizer_without_padding_pads_with_its_end_as_in_training(tmp_path: Path) -> None:
    folder = _save(tmp_path / "policy", pad_token=None)
    assert AutoTokenizer.from_pretrained(folder).pad_token is None
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert load_tokenizer(str(folder), model).pad_token == "<|im_end|>"
    assert _measure(folder, tmp_path / "out", "--methods", "grpo,align_opsd")["rollouts"] == 32
    flags = ["--model", str(folder), "--environment", "corridor_game", "--max_completion_length", "8"]
    assert len(evaluate([*flags, "--max_prompt_length", "300"]).outcomes) == 12


def test_a_tokenizer_that_does_not_fit_its_model_is_named(tmp_path: Path) -> None:
    for tokens, message in (
        ({"pad_token": "<|new|>"}, r"pads with '<\|new\|>', token \d+, and its model embeds \d+ tokens"),
        ({"chat_template": None}, "no chat template"),
    ):
        folder = _save(tmp_path / next(iter(tokens)), **tokens)
        with pytest.raises(ValueError, match=message):
            _measure(folder, tmp_path / "out", "--methods", "grpo")


def test_a_class_of_trls_convention_is_measured_as_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without ``task_id``, no word on who won, the teacher's text in a column."""
    rows = [{"prompt": "Count.", "target": number, "hint": "five"} for number in range(2, 8)]

    def suite() -> Suite:
        panel = TaskPanel.of("counting", "test", [{**row, "task_id": str(row["target"])} for row in rows])
        made = Dataset.from_list(rows)
        return Suite("counting", tool_classes.Counter, lambda split: made, lambda name: panel, (), {})

    module: Any = types.ModuleType("counting_suite")
    module.suite, module.__file__ = suite, "counting_suite.py"
    monkeypatch.setitem(sys.modules, "counting_suite", module)
    flags = ["--methods", "grpo,align_opsd", "--skill_bank", "hint", "--everywhere"]
    folder = _save(tmp_path / "policy")
    with pytest.raises(ValueError, match="--value reward"):
        _measure(folder, tmp_path / "out", *flags, environment="counting_suite")
    result = _measure(folder, tmp_path / "out", *flags, "--value", "reward", environment="counting_suite")
    assert result["rollouts"] == 32 and result["success"] is None and result["measured_tasks"] == 4


def test_tasks_without_an_identity_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corridor, "corridor_tasks", lambda count: [{"need": 1, "task": "corridor"}] * count)
    monkeypatch.setattr(TaskPanel, "of", lambda *given: None)
    with pytest.raises(ValueError, match="'corridor' have no column 'task_id'"):
        _measure(_save(tmp_path / "policy"), tmp_path / "out", "--methods", "grpo")


class Trapdoor(corridor.Corridor):
    """Raises where an episode goes left first."""

    def step(self, action: str) -> corridor.Step:
        if action == "left" and not self._turns:
            raise RuntimeError("the floor is gone")
        return super().step(action)


@pytest.mark.full
def test_rollouts_that_failed_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(corridor.GAMES, "trapdoor", Trapdoor)
    policy = corridor.save_policy(tmp_path / "policy")
    options = ["--methods", "grpo", "--seed", "2", "--environment_options", '{"trapdoor": true}']
    result = _measure(policy, tmp_path / "out", *options)
    failed = result["failed_rollouts"]
    assert failed > 0 and result["rollouts"] + failed == 32
    assert f"Left out: {failed} rollouts that failed; the first: error: " in capsys.readouterr().out


class Mended(corridor.Corridor):
    noise = "step"


@pytest.mark.full
def test_an_environment_that_was_mended_is_told_from_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corridor.GAMES, "mended", Mended)
    random.seed(0)
    policy = corridor.save_policy(tmp_path / "policy")
    flags = ["--methods", "grpo", "--everywhere", "--environment_options", json.dumps({"mended": True})]
    for noise in ("step", ""):
        monkeypatch.setattr(Mended, "noise", noise)
        with pytest.raises(ReplayError, match="not deterministic.* kept in .*out/parts, remove that after a change"):
            _measure(policy, tmp_path / "out", *flags)
    shutil.rmtree(tmp_path / "out" / "parts")
    assert _measure(policy, tmp_path / "out", *flags)["measured_tasks"] == 4
