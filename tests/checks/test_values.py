"""Every field of a configuration, given every kind of wrong value: refused by its name, or stored as its type says."""

from __future__ import annotations

import math
import types
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from fakes.sweeps import mostly_full
from trl import ModelConfig

from alignopsd_trl.commands.launch.arguments import MODEL_RULES, RecipeArguments, parse
from alignopsd_trl.common.options import hints_of, settle, settled
from alignopsd_trl.config import INHERITED_RULES, AlignOPSDConfig

WRONG: list[Any] = [
    *("false", "banana", "", "4096", "nan", "null", "[1]", '{"a": 1}'),
    *(True, [], ["x"], {}, {"a": 1}, b"1", object(), math.nan, math.inf, -1, -0.5, 10**30, 1e300, None, 1 + 2j),
]


class Unprintable:
    """A value that can't be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Long:
    """A value that shows itself in many lines."""

    def __repr__(self) -> str:
        return "\n".join(["line"] * 500)


WRONG += [
    Unprintable(),
    Long(),
    bytearray(b"1"),
    {1: 2},
    '{"a": 1, "a": 2}',
    '{"a": NaN}',
    "[" * 9999,
    "a\0b",
    "\udc80",
]
ALSO = ("resume_from_checkpoint", "fsdp", "accelerator_config", "scale_rewards", "report_to", "debug")
ALSO += ("lora_target_modules",)
"""Fields whose annotation says less than transformers takes."""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; a whole number may stand where a float may."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if kind is Literal:
        return value in inner
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    if kind is int:
        return type(value) is int and abs(value) < 2**63
    if kind is list:
        return isinstance(value, list) and all(fits(one, inner[0]) for one in value)
    return kind is Any or value is hint or isinstance(value, kind if isinstance(kind, type) else type(None))


@pytest.mark.parametrize(
    ("kind", "rules"),
    [(AlignOPSDConfig, INHERITED_RULES), (RecipeArguments, {}), (ModelConfig, MODEL_RULES)],
)
def test_a_wrong_value_is_named_or_becomes_what_its_field_says(kind: type, rules: dict[str, Any]) -> None:
    hints, written = hints_of(kind, rules), get_type_hints(kind)
    for name in hints:
        for value in WRONG:
            try:
                stored = settled({name: value}, hints)[name]
            except ValueError as error:
                assert str(error).startswith(f"{name}="), name
                assert "\n" not in str(error) and len(str(error)) < 1200, name
            else:
                assert name in ALSO or fits(stored, written[name]), (name, value, stored)
                assert not (isinstance(stored, bool) and isinstance(value, str | bytes) and stored), (name, value)


@pytest.mark.parametrize("value", mostly_full(["false", *WRONG[1:]]), ids=lambda one: ascii(type(one)))
def test_the_constructor_refuses_or_stores_it_alike(tmp_path: Path, value: Any) -> None:
    for name, hint in get_type_hints(AlignOPSDConfig).items():
        if name not in hints_of(AlignOPSDConfig) or name in ("deepspeed", "ddp_backend"):
            continue
        given = {"output_dir": str(tmp_path), "use_cpu": True, name: value}
        try:
            stored = getattr(AlignOPSDConfig(**given), name)
        except ValueError as error:
            assert name in str(error), (name, error)
        else:
            assert name in ALSO or isinstance(stored, Enum) or fits(stored, hint), (name, stored)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"tokens_per_forward": "4096"}, 4096),
        ({"learning_rate": "5e-2"}, 0.05),
        ({"rectify": "false"}, False),
        ({"overwrite_output_dir": "false"}, False),
        ({"max_turns": np.int64(3)}, 3),
        ({"alpha_max": torch.tensor(0.5)}, 0.5),
        ({"generation_kwargs": '{"typical_p": 0.9}'}, {"typical_p": 0.9}),
        ({"lr_scheduler_type": "cosine"}, "cosine"),
        ({"num_train_epochs": 2}, 2),
    ],
)
def test_a_value_in_another_form_is_converted_once(tmp_path: Path, given: dict[str, Any], stored: Any) -> None:
    ((name, _),) = given.items()
    found = getattr(AlignOPSDConfig(str(tmp_path), use_cpu=True, **given), name)
    assert found == stored and isinstance(found, type(stored))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": None}, "temperature=None must have a value; leave it out for the default 1.0"),
        ({"auxiliary_coefficient": "banana"}, "auxiliary_coefficient='banana' must be a number"),
        ({"auxiliary_coefficient": -1}, "auxiliary_coefficient=-1 must not be negative"),
        ({"save_trajectories": 1}, "save_trajectories=1 must be true or false"),
        ({"rectify": 1.0}, "rectify=1.0 must be true or false"),
        ({"learning_rate": True}, "learning_rate=True must be a number"),
        ({"beta": math.inf}, "beta=inf must be a finite number"),
        ({"num_generations_eval": -3}, "num_generations_eval=-3 must be 1 or more, or None"),
        ({"method": "grpo", "method_options": "banana"}, "method_options='banana' is no JSON"),
        ({"chat_template_kwargs": "[1]"}, r"chat_template_kwargs='\[1\]' must be a JSON mapping"),
        ({"model_init_kwargs": [1]}, r"model_init_kwargs=\[1\] must be a mapping or null"),
        ({"vllm_gpu_memory_utilization": 3}, r"vllm_gpu_memory_utilization=3 must lie in \(0, 1\]"),
        ({"optim": "adam"}, "optim='adam': choose one of 'adamw_torch'"),
        ({"log_level": "loud"}, "log_level='loud': choose one of 'detail'"),
        ({"deepspeed": "no_such.json"}, "deepspeed='no_such.json' must be a mapping or the path of a JSON file"),
        ({"accelerator_config": {"banana": 1}}, r"accelerator_config\['banana'\] is no option of accelerate's"),
        ({"reward_weights": [1.0, True]}, "reward_weights="),
        ({"seed": None}, "seed=None must have a value"),
        ({"generation_kwargs": '{"a": 1, "a": 2}'}, "is no JSON \\('a' stands there twice\\)"),
        ({"generation_kwargs": '{"a": 1e999}'}, "is no JSON \\(1e999 is no finite number\\)"),
        ({"lr_scheduler_kwargs": Path("a.json")}, "must be a mapping or null"),
        ({"thinking_tags": {"a", "b"}}, "must be a list"),
        ({"run_name": "a\0b"}, "run_name='a.x00b' has a letter that no file can hold"),
        ({"deepspeed": "x" * 9999}, "File name too long; name a file"),
        ({"vespo_k_pos": -1}, "vespo_k_pos=-1 must not be negative"),
        ({"generation_kwargs": {"temperature": 0.5}}, r"generation_kwargs\['temperature'\]: set temperature instead"),
        ({"generation_kwargs": '{"max_new_tokens": 3}'}, "set max_completion_length instead"),
        ({"generation_kwargs": {"num_beams": 2}}, "a turn is one response that is sampled"),
        ({"temperature": 1e-300}, "temperature=1e-300 must be 0.001 or more"),
        ({"eval_temperature": 1e-9}, "eval_temperature=1e-09 must be 0.001 or more"),
        ({"use_liger_kernel": True}, "set use_liger_kernel=False"),
        ({"include_num_input_tokens_seen": "banana"}, "choose one of 'all', 'non_padding', 'no'"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlignOPSDConfig(str(tmp_path), use_cpu=True, **given)


def test_the_package_is_all_that_a_settled_config_needs_to_be_settled_again(tmp_path: Path) -> None:
    once = AlignOPSDConfig(str(tmp_path), use_cpu=True, resume_from_checkpoint=True, report_to=["none"])
    before = dict(vars(once))
    settle(once, INHERITED_RULES)
    assert vars(once) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--generation_kwargs", "x"], "generation_kwargs='x' is no JSON"),
        (["--lora_task_type", "BANANA", "--use_peft"], "lora_task_type='BANANA': choose one of 'CAUSAL_LM'"),
        (["--threads", "100000"], r"threads=100000 must lie in \[1, 1024\]"),
        (["--config", "learning_rate: null"], "learning_rate=None must be a number"),
        (["--config", "rectify: maybe"], "rectify='maybe' must be true or false"),
        (["--config", "use_peft: [1]"], r"use_peft=\[1\] must be true or false"),
        (["--config", "lora_r: true"], "lora_r=True must be a whole number"),
        (["--config", "environment_options: [1]"], "environment_options="),
        (["--config", "1: 2"], "1 is unknown"),
        (["--config", "env: [1]"], r"env=\[1\] must be a mapping"),
        (["--config", "env: {A: {b: 1}}"], "env={'A': {'b': 1}} must be a mapping"),
        (["--config", "output_dir: null"], "output_dir=None must be text"),
        (["--config", "model_name_or_path: null"], "model_name_or_path=None must be text"),
        (["--model_init_kwargs", '{"dtype": "int8"}'], r"model_init_kwargs\['dtype'\]: set dtype instead"),
        (["--gpu_gib", "20"], "gpu_gib=20 is for --plan"),
    ],
)
def test_a_recipe_refuses_it_on_the_command_line_and_in_yaml(tmp_path: Path, flags: list[str], message: str) -> None:
    if flags[0] == "--config":
        (tmp_path / "own.yaml").write_text(flags[1])
        flags = ["--config", str(tmp_path / "own.yaml")]
    with pytest.raises(ValueError, match=message):
        parse("webshop_tiny", flags)


def test_a_mapping_of_yaml_is_the_environments_json(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("environment_options: {max_turns: 3}")
    assert parse("webshop_tiny", ["--config", str(tmp_path / "own.yaml")])[0].environment_options == '{"max_turns": 3}'
