"""What was set and is not read is said once; what would mislead is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from trl import ModelConfig

from alignopsd_trl.checks.intended import Intended
from alignopsd_trl.checks.unread import READ, WHY_NOT, not_read, unread
from alignopsd_trl.commands.launch import recipe
from alignopsd_trl.commands.launch.arguments import RecipeArguments, parse
from alignopsd_trl.commands.launch.presets import preset, preset_names
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import get_method

NAMES = {one.name for kind in (RecipeArguments, AlignOPSDConfig, ModelConfig) for one in fields(kind)}
FACTS = {"_skills": True, "_categories": True, "_tools": False}


def test_the_table_names_settings_and_conditions_that_there_are() -> None:
    for names, conditions in READ:
        assert set(names.split()) <= NAMES, names
        asked = {one.partition("=")[0].removesuffix("!") for one in conditions.split()}
        assert asked <= NAMES | set(WHY_NOT), conditions
        assert conditions, names


RELEASED = [(name, "released") for name in preset_names() if re.fullmatch(r"(webshop|alfworld|searchqa)_[37]b", name)]


@pytest.mark.parametrize(("name", "kind"), [*((name, "paper") for name in preset_names()), *RELEASED])
def test_a_shipped_preset_sets_nothing_that_its_run_does_not_read(name: str, kind: str, tmp_path: Path) -> None:
    parsed = parse(name, ["--plan", "--preset", kind, "--output_dir", str(tmp_path)])
    settings = {key: value for one in parsed for key, value in vars(one).items()}
    given = {key: settings[key] for key in preset(name, kind)}
    assert unread(given, settings | FACTS, get_method(parsed[1].method)(parsed[1])) == ""


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--method grpo --alpha_max 0.5", ["alpha_max=0.5, since method='grpo' has others"]),
        (
            "--method grpo --skill_bank /no.json --encoder x --teach_solved False",
            ["skill_bank='/no.json', since nothing reads skills", "encoder='x', since", "asks no teacher"],
        ),
        ("--method grpo --method_options {}", []),
        ('--method grpo --method_options {"a":1}', ["method_options={'a': 1}, since method='grpo' has none"]),
        ("--reward_weights 2.0", ["reward_weights=[2.0], since scale_rewards='group'"]),
        ("--reward_weights 2.0 --scale_rewards none", []),
        ("--rows_per_step 64", ["rows_per_step=64, since max_turns=None"]),
        ("--num_train_epochs 2", ["num_train_epochs=2.0, since max_steps="]),
        ("--warmup_steps 10", ["warmup_steps=10.0, since lr_scheduler_type='constant'"]),
        ('--lr_scheduler_kwargs {"a":1}', ["lr_scheduler_kwargs={'a': 1}, since lr_scheduler_type='constant'"]),
        ("--warmup_steps 10 --lr_scheduler_type cosine", []),
        ("--vllm_gpu_memory_utilization 0.5", ["vllm_gpu_memory_utilization=0.5, since use_vllm=False"]),
        ("--distribution_beta 0.1 --band 2", ["distribution_beta=0.1, since auxiliary_loss='none'", "band=2.0, since"]),
        ("--rectify False --max_sources 2", ["max_sources=2, since rectify=False"]),
        ("--merge_rows False", ["merge_rows=False, since history='window'"]),
        ("--bnb_4bit_quant_type fp4", ["bnb_4bit_quant_type='fp4', since load_in_4bit=False"]),
        ("--model_revision v1", ["model_revision='v1', since the model is a folder"]),
        (
            "--eval_steps 3 --num_generations_eval 4",
            ["eval_steps=3.0, since eval_strategy='no'", "num_generations_eval=4, since"],
        ),
        ("--optim_args a=b", ["optim_args='a=b', since optim='adamw_torch_fused'"]),
        ("--optim sgd --optim_args momentum=0.9", []),
        ("--optim_target_modules q_proj", ["optim_target_modules='q_proj', since optim="]),
        ("--learning_rate 1e-4 --min_span 3 --rounds 2", []),
        ("--label_smoothing_factor 0.1", ["label_smoothing_factor=0.1, since the loss of turn rows"]),
    ],
)
def test_a_plan_names_what_the_user_set_and_the_run_leaves_unread(
    flags: str, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.main("webshop_tiny", ["--plan", "--use_cpu", "True", "--output_dir", str(tmp_path / "run"), *flags.split()])
    said = " ".join(capsys.readouterr().out.split())
    assert all(said.count(one) == 1 for one in told), said
    assert ("set and not read" in said) == bool(told)


def test_a_preset_that_forgets_use_peft_is_refused_and_a_flag_may_switch_it_off(tmp_path: Path) -> None:
    own = {**preset("webshop_tiny"), "lora_r": 4}
    flags = ["--output_dir", str(tmp_path)]
    with pytest.raises(ValueError, match="lora_r=4 shapes an adapter"):
        parse("mine", flags, own)
    assert not parse("mine", [*flags, "--use_peft", "False"], {**own, "use_peft": True})[2].use_peft
    assert parse("mine", flags, {**own, "use_peft": True})[2].lora_r == 4


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"method": "grpo", "alpha_max": 0.5}, ["alpha_max=0.5, since method='grpo' has others"]),
        ({"alpha_max": 0.5}, []),
        ({"skill_tokens": 9}, ["skill_tokens=9, since nothing reads skills"]),
        (
            {"vllm_engine_options": {"max_num_seqs": 4}},
            ["vllm_engine_options={'max_num_seqs': 4}, since use_vllm=False"],
        ),
        ({"max_tool_calling_iterations": 3}, ["since the environment has no tools"]),
        ({"reward_weights": [2.0]}, ["reward_weights=[2.0], since"]),
        ({"label_smoothing_factor": 0.1}, ["label_smoothing_factor=0.1"]),
        ({"pad_to_multiple_of": 8, "sapo_temperature_neg": 2.0}, ["pad_to_multiple_of=8", "sapo_temperature_neg=2.0"]),
        ({"vespo_k_pos": 1.0}, ["vespo_k_pos=1.0"]),
        ({"vespo_k_pos": 1.0, "loss_type": "vespo"}, []),
        ({"train_sampling_strategy": "group_by_length"}, ["train_sampling_strategy='group_by_length'"]),
        ({"use_bias_correction_kl": False}, ["use_bias_correction_kl=False"]),
        ({"use_bias_correction_kl": False, "beta": 0.1}, []),
    ],
)
def test_a_trainer_in_python_says_it_too(given: dict[str, Any], told: list[str], tmp_path: Path) -> None:
    args = AlignOPSDConfig(str(tmp_path), use_cpu=True, **given)
    note = not_read(Intended(args, get_method(args.method)(args), "tiny", None))
    assert all(note.count(one) == 1 for one in told) and bool(note) == bool(told), note


def test_an_adapter_that_the_model_has_no_place_for_leaves_no_folder(tmp_path: Path) -> None:
    flags = ["--use_peft", "--lora_target_modules", "banana", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="lora_target_modules="):
        recipe.main("webshop_tiny", ["--use_cpu", "True", *flags])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--reward_weights", "2", "3", "4"], "reward_weights has 3 entries for 0 reward_funcs"),
        (["--model_init_kwargs", '{"banana": 1}'], r"model_init_kwargs={'banana': 1}: .*argument 'banana'"),
        (["--attn_implementation", "banana"], "model_init_kwargs={'attn_implementation': 'banana'}: "),
        (["--output_dir", f"{__file__}/x"], "output_dir=.* is a file; choose another folder"),
        (["--model_init_kwargs", '{"vocab_size": 7}'], "model_init_kwargs={'vocab_size': 7}: Padding_idx must be"),
        (["--use_peft", "--lora_target_modules", "banana"], "lora_target_modules='banana': Target modules"),
        (["--use_peft", "--lora_target_modules", "["], r"lora_target_modules='\[': unterminated"),
        (["--use_peft", "--lora_modules_to_save", "banana"], "lora_modules_to_save: the model has no 'banana'"),
        (["--use_peft", "--lora_target_parameters", "banana"], "lora_target_parameters: the model has no 'banana'"),
        (["--metric_for_best_model", "banana"], "metric_for_best_model='banana' is no number of an evaluation"),
        (["--lora_r", "64"], "lora_r=64 shapes an adapter, and without use_peft all weights are trained"),
        (["--lora_r", "16"], "lora_r=16 shapes an adapter"),
        (["--use_dora"], "use_dora=True shapes an adapter"),
        (
            "--held_out 4 --load_best_model_at_end True --eval_strategy steps".split(),
            "held_out=4 and load_best_model_at_end=True both choose the weights",
        ),
        (
            "--tasks_per_round 4 --per_device_train_batch_size 8".split(),
            "tasks_per_round=4 is given beside batch arguments",
        ),
        (
            "--updates_per_round 2 --steps_per_generation 4".split(),
            "--updates_per_round and --steps_per_generation are both given",
        ),
        (
            ["--max_prompt_length", "8", "--environment_options", '{"max_turns": 3}'],
            "max_prompt_length=8: the first prompts have",
        ),
        (["--max_completion_length", "1000000"], "max_completion_length=1000000 is not less than the model's 1024"),
        (["--environment_options", '{"history_length": "x"}'], "history_length='x' must be of type int"),
    ],
)
def test_a_plan_refuses_what_the_run_would(flags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        recipe.main("webshop_tiny", ["--plan", "--use_cpu", "True", "--output_dir", str(tmp_path / "run"), *flags])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 20}, "top_k=20"),
        ({"min_p": 0.1}, "min_p=0.1"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"vllm_structured_outputs_regex": "a+"}, "vllm_structured_outputs_regex='a"),
        ({"generation_kwargs": {"presence_penalty": 1.0}}, r"generation_kwargs\['presence_penalty'\]"),
    ],
)
def test_an_engine_that_samples_from_fewer_tokens_is_refused_with_the_correction_on(
    given: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"{named}.*vllm_importance_sampling_correction=False"):
        AlignOPSDConfig(str(tmp_path), use_cpu=True, use_vllm=True, **given)
    AlignOPSDConfig(str(tmp_path), use_cpu=True, **given)
    AlignOPSDConfig(str(tmp_path), use_cpu=True, use_vllm=True, vllm_importance_sampling_correction=False, **given)
