"""What ``train`` or ``evaluate`` would refuse or raise in the first round is refused by ``plan``, in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.toy_suite import arguments, save_policy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from alignopsd_trl.commands.launch import evaluate, recipe
from alignopsd_trl.commands.launch.presets import LAPTOP
from alignopsd_trl.common.errors import UserError

PRESET = {**LAPTOP, "environment": "tests.fakes.toy_suite", "model_name_or_path": "policy", "save_rounds": 1}
SMALL = {"rounds": 1, "tasks_per_round": 1, "panel_limit": 1, "evaluate_first": False, "method": "grpo"}
SMALL |= {"save_trajectories": False}
Change = Callable[[Path], object]


def _json(name: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def _text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def _weights(change: Callable[[dict], dict]) -> Change:
    return lambda folder: save_file(
        change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"}
    )


CONFIG, GENERATION, WORDS = "config.json", "generation_config.json", "tokenizer_config.json"
FILES: dict[str, Change] = {
    "as it is": lambda folder: None,
    "no architectures": _json(CONFIG, architectures=None),
    "no language model": _json(CONFIG, architectures=["Qwen2Model"]),
    "an unknown type": _json(CONFIG, model_type="nosuch"),
    "a cut vocabulary": _json(CONFIG, vocab_size=20),
    "no heads": _json(CONFIG, num_attention_heads=0),
    "a third layer": _json(CONFIG, num_hidden_layers=3),
    "one layer of two": _json(CONFIG, num_hidden_layers=1),
    "no layers": _json(CONFIG, num_hidden_layers=0),
    "an unknown activation": _json(CONFIG, hidden_act="nosuch"),
    "few positions": _json(CONFIG, max_position_embeddings=4),
    "a temperature that is not sampled with": _json(GENERATION, temperature=0.5),
    "an end that is no number": _json(GENERATION, eos_token_id="x"),
    "stop strings": _json(GENERATION, stop_strings=["x"]),
    "no end token": _json(WORDS, eos_token=None),
    "no pad token": _json(WORDS, pad_token=None),
    "a new pad token": _json(WORDS, pad_token="[NEW]"),
    "no template": lambda folder: (folder / "chat_template.jinja").unlink(),
    "an empty template": _text("chat_template.jinja", ""),
    "a template with a fault": _text("chat_template.jinja", "{% for x in %}"),
    "a template that refuses": _text("chat_template.jinja", "{{ raise_exception('no') }}"),
    "a tokenizer of nothing": _text("tokenizer.json", "{}"),
    "torn weights": lambda folder: (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}"),
    "a missing weight": _weights(lambda all_: dict(list(all_.items())[1:])),
    "a flat weight": _weights(lambda all_: {name: one.reshape(-1) for name, one in all_.items()}),
    "an index of nothing": _text("model.safetensors.index.json", "[]"),
    "a missing shard": _text("model.safetensors.index.json", '{"weight_map": {"x": "model-2.safetensors"}}'),
    "whole numbers": _weights(lambda all_: {name: one.to(torch.int8) for name, one in all_.items()}),
    "a pickle": lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
    "an adapter without weights": _text("adapter_config.json", "{}"),
}
WHOLE = ("num_generations", "gradient_accumulation_steps", "per_device_eval_batch_size", "logging_steps", "top_k")
WHOLE += ("max_prompt_length", "max_completion_length", "skill_tokens", "steps_per_generation", "pad_to_multiple_of")
BROKEN = ("temperature", "eval_temperature", "min_p", "top_p", "repetition_penalty", "learning_rate", "delta")
BROKEN += ("epsilon_high", "neftune_noise_alpha", "router_aux_loss_coef", "adam_epsilon", "max_grad_norm", "beta")
OPTIONS = st.one_of(
    st.tuples(st.sampled_from(WHOLE), st.sampled_from((-5, -1, 0, 1))),
    st.tuples(st.sampled_from(BROKEN), st.sampled_from((-1.0, 0.0, 2.5, float("nan"), float("inf")))),
    st.tuples(st.just("report_to"), st.sampled_from(("mlflow", "nosuch", "none"))),
    st.just(("method", "vanilla")),
)
"""Of `adam_epsilon` and others, values that a run takes are drawn too: it then has to take them."""
FLAGS = st.sampled_from(
    (*("--temperature=-1", "--top_k=-3", "--min_p=2", "--batch_size=0", "--top_p=nan", "--max_prompt_length=0"), "")
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


def _outcome(call: Callable[[], object]) -> Exception | SystemExit | None:
    try:
        call()
    except (Exception, SystemExit) as error:
        return error
    return None


def _told(error: Any) -> bool:
    """Whether a command would say it in one sentence and end."""
    return isinstance(error, UserError) and "\n" not in str(error)


def _check(folder: Path, policy: Path, change: Change, option: tuple[str, Any] | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(policy, folder / "policy")
    change(folder / "policy")
    argv = arguments(folder / "run", folder / "policy", **SMALL | dict([option] if option else []))
    planned = _outcome(lambda: recipe.main("toy", [*argv, "--plan"], PRESET))
    trained = planned or _outcome(lambda: recipe.main("toy", argv, PRESET))
    assert trained is None or _told(planned), (planned, trained)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4)
@example(option=("max_prompt_length", 1))
@given(option=OPTIONS)
def test_a_plan_refuses_the_options_that_a_first_round_ends_with(option: Any, policy: Path, tmp_path: Path) -> None:
    _check(tmp_path / "tried", policy, FILES["as it is"], option)


@pytest.mark.full
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(option=st.none() | OPTIONS, change=st.sampled_from([*FILES]))
def test_a_plan_refuses_what_a_first_round_ends_with(option: Any, change: str, policy: Path, tmp_path: Path) -> None:
    _check(tmp_path / "tried", policy, FILES[change], option)


PLAYED = ("--environment=tests.fakes.toy_suite", "--limit=1", "--max_completion_length=4", "--max_prompt_length=128")


def _evaluates(folder: Path, policy: Path, change: Change, flag: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(policy, folder)
    change(folder)
    argv = [f"--model={folder}", *PLAYED, *([flag] if flag else [])]
    error = _outcome(lambda: evaluate.main(argv))
    assert error is None or _told(error), error


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6)
@given(flag=FLAGS, change=st.sampled_from([*FILES]))
def test_an_evaluation_plays_or_says_why_not(flag: str, change: str, policy: Path, tmp_path: Path) -> None:
    _evaluates(tmp_path / "tried", policy, FILES[change], flag)


@pytest.mark.full
@pytest.mark.parametrize("change", FILES)
def test_an_evaluation_plays_each_model_or_says_why_not(change: str, policy: Path, tmp_path: Path) -> None:
    _evaluates(tmp_path / "tried", policy, FILES[change], "")
