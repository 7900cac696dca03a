from __future__ import annotations

import contextlib
import json
import os
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import toy_suite
from fakes.toy import toy_dataset

from alignopsd_trl import AlignOPSDTrainer
from alignopsd_trl.commands.launch import recipe
from alignopsd_trl.commands.launch.arguments import RecipeArguments, parse, parsed
from alignopsd_trl.commands.launch.job import Job
from alignopsd_trl.commands.launch.machine import Launch, check_launch
from alignopsd_trl.commands.launch.memory import Loading, backbone, encoder_bytes, estimate
from alignopsd_trl.commands.launch.presets import BACKBONES, LAPTOP, optimiser_steps, preset, round_shape
from alignopsd_trl.commands.launch.running import opening_facts
from alignopsd_trl.common.files import write_json
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments import load
from alignopsd_trl.environments.base import UNMADE
from alignopsd_trl.recipes import webshop_3b
from alignopsd_trl.scoring.prefix_cache import SEVERAL, CacheLimits, cache_limits

CPU = ["--use_cpu", "True"]


def test_a_resumed_run_keeps_what_its_first_session_measured(tmp_path: Path) -> None:
    own = {"environment": "webshop_tiny", "model_name_or_path": "tiny", "output_dir": str(tmp_path), "use_cpu": True}
    run = {"id": "x", "configuration": {"bf16": True, "learning_rate": 7.0}, "sessions": [{"processes": 1}]}
    write_json(tmp_path / "run.json", run)
    resume = ["--resume_from_checkpoint", "True"]
    for measured, flags, wanted in (
        (False, resume, True),
        (False, [], False),
        (False, [*resume, "--bf16", "False"], False),
        (True, [*resume, "--output_dir", str(tmp_path / "other")], True),
    ):
        _, config, _ = parse("own", flags, own | {"bf16": measured})
        assert config.bf16 is wanted and config.learning_rate != 7.0


@pytest.mark.parametrize("place", ["", " "])
def test_an_empty_output_dir_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="output_dir=.* is empty; name a folder"):
        parse("webshop_tiny", [*CPU, "--output_dir", place])


def test_paper_preset_has_the_papers_tables(tmp_path: Path) -> None:
    arguments, config, model = parse("webshop_7b", [*CPU, "--output_dir", str(tmp_path)])
    assert model.model_name_or_path == "Qwen/Qwen2.5-7B-Instruct" and arguments.encoder == "Qwen/Qwen3-Embedding-0.6B"
    rectification = {"similarity_threshold": 0.8, "max_sources": 3, "aggregation_temperature": 0.1, "alpha_max": 0.8}
    credit = {"profile_temperature": 0.1, "boundary_quantile": 0.8, "boundary_min": 0.01, "boundary_max": 0.1}
    credit |= {"min_span": 2, "max_span": 8, "credit_temperature": 0.5, "credit_mixing": 0.5, "density_cap": 4.0}
    protocol = {"max_steps": 150, "steps_per_generation": 1, "generation_batch_size": 128, "num_generations": 8}
    protocol |= {"max_prompt_length": 4096, "max_completion_length": 512, "max_turns": 15, "temperature": 1.0}
    protocol |= {"eval_temperature": 0.4, "valid_profiles": "eligible", "group_statistics": "trajectory"}
    for name, value in (rectification | credit | protocol | {"auxiliary_loss": "none", "delta": None}).items():
        assert getattr(config, name) == value, name
    assert config.top_k == 0, "sampling is not truncated"
    assert (arguments.rounds, arguments.panel) == (150, "test/128")
    assert json.loads(arguments.environment_options) == {"reward": "score"}
    assert parse("alfworld_3b", [*CPU, "--output_dir", str(tmp_path)])[0].panel == "valid_seen/128"


def test_options_of_an_environment_that_no_file_can_hold_are_named() -> None:
    with pytest.raises(ValueError, match=r"environment_options=.* must be what JSON holds .*let suite\(\) make"):
        RecipeArguments(environment_options={"a": object()})


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--environment_options", '{"data_dir": "D"}'], {"reward": "score", "data_dir": "D"}),
        (["--environment_options", '{"reward": "won"}'], {"reward": "won"}),
        (["--preset", "released"], {"reward": "won", "splits": "released"}),
        (["--environment", "alfworld"], None),
        (["--environment", "alfworld", "--environment_options", '{"seed": 1}'], {"seed": 1}),
    ],
)
def test_environment_options_are_over_those_of_the_preset(tmp_path: Path, flags: list[str], options: Any) -> None:
    arguments, _, _ = parse("webshop_3b", [*CPU, *flags, "--output_dir", str(tmp_path)])
    assert json.loads(arguments.environment_options or "null") == options
    (tmp_path / "run.yaml").write_text('environment_options: \'{"data_dir": "D"}\'\n')
    arguments, _, _ = parse("webshop_3b", ["--config", str(tmp_path / "run.yaml"), *flags[:2]])
    assert "D" in arguments.environment_options or "--environment_options" in flags


def test_a_laptops_recipe_keeps_the_profiles_of_the_results_on_record(tmp_path: Path) -> None:
    for name in ("webshop_tiny", "alfworld_pairs", "searchqa_hops", "webshop_trips"):
        assert preset(name)["valid_profiles"] == "matched"


RELEASED = {"steps_per_generation": 16, "max_steps": 150 * 16}
OPSD = ["--method", "opsd"]  # which alone has no reference, but in the published form


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        *(
            (name, ["--preset", "released"], RELEASED | expected)
            for name, expected in {
                "webshop_3b": {"valid_profiles": "matched", "credit_temperature": 0.2, "max_sources": 3}
                | {"action_filter": "webshop"},
                "webshop_7b": {"max_sources": 2, "action_filter": "none", "invalid_action_penalty": 0.1, "delta": 3.0},
                "alfworld_3b": {"similarity_threshold": 0.65, "auxiliary_loss": "sdar", "max_sources": 2}
                | {"max_turns": 50},
                "searchqa_3b": {"aggregation": "log_mean", "alpha_max": 0.2, "group_statistics": "trajectory"}
                | {"eval_temperature": 0.001},
            }.items()
        ),
        ("webshop_3b", OPSD, {"beta": 0.0}),
        ("webshop_3b", [*OPSD, "--method_options", '{"form": "gated"}'], {"beta": 0.01}),
        ("webshop_3b", [*OPSD, "--beta", "0.5"], {"beta": 0.5}),
        ("webshop_3b", ["--method", "grpo"], {"beta": 0.01}),
        ("webshop_tiny", ["--max_steps", "20"], {"max_steps": 20}),
    ],
)
def test_a_preset_has_the_settings_of_its_kind_and_its_method(
    tmp_path: Path, name: str, flags: list[str], expected: dict[str, Any]
) -> None:
    _, config, _ = parse(name, [*CPU, *flags, "--output_dir", str(tmp_path)])
    assert {field: getattr(config, field) for field in expected} == expected


@pytest.mark.parametrize("name", ["webshop_7b", "alfworld_3b", "searchqa_7b", "webshop_tiny"])
def test_checkpoints_are_few_and_fall_between_rounds(tmp_path: Path, name: str) -> None:
    for flags in ([], ["--updates_per_round", "4"], ["--save_rounds", "5"]):
        _, config, _ = parse(name, [*CPU, *flags, "--output_dir", str(tmp_path)])
        per_round = config.steps_per_generation // config.gradient_accumulation_steps
        assert config.save_steps % per_round == 0 and config.save_total_limit == 2
        assert config.save_steps == per_round * (5 if flags[:1] == ["--save_rounds"] else 6 if "tiny" in name else 25)


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ([], 12),
        (["--num_iterations", "4"], 48),
        (["--num_iterations", "4", "--updates_per_round", "2"], 96),
        (["--num_iterations", "2", "--updates_per_round", "4", "--gradient_accumulation_steps", "2"], 48),
        (["--updates_per_round", "4", "--gradient_accumulation_steps", "8"], 6),
        (["--max_steps", "5"], 5),
    ],
)
def test_rounds_are_rounds_however_many_steps_they_take(tmp_path: Path, flags: list[str], steps: int) -> None:
    rounds = [] if flags[:1] == ["--max_steps"] else ["--rounds", "12"]
    given = [*CPU, *rounds, *flags, "--output_dir", str(tmp_path)]
    found = parsed("webshop_tiny", given)
    assert found.args.max_steps == steps
    changed = found.changed
    assert ("max_steps" in changed) == (flags[:1] == ["--max_steps"]) and "save_steps" not in changed


def test_a_run_differs_from_its_preset_by_what_was_given(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("temperature: 0.9\nnum_generations: 8\n")
    flags = ["--method", "opsd", "--eval_temperature", "4e-1", "--config", str(tmp_path / "own.yaml")]
    found = parsed("webshop_tiny", [*CPU, *flags, "--output_dir", str(tmp_path)])
    assert found.changed == {"method": "opsd", "temperature": 0.9}, "others are as in the preset, or follow"
    assert {"method", "eval_temperature", "temperature", "num_generations"} <= found.given


def test_rounds_that_end_inside_a_step_are_refused(tmp_path: Path) -> None:
    flags = ["--rounds", "3", "--gradient_accumulation_steps", "2", "--output_dir", str(tmp_path)]
    with pytest.raises(ValueError, match="rounds=3 would end inside an optimiser step, which takes 2 rounds.*use 4"):
        parse("webshop_tiny", [*CPU, *flags])


@pytest.mark.parametrize(
    ("rows", "tasks", "turns", "processes", "steps"),
    [
        (64, 16, 15, 1, 16),  # WebShop: 128 episodes of 8.5 turns, 17 launchers' mini-batches
        (64, 16, 15, 8, 16),
        (64, 16, 15, 16, 8),  # 8 trajectories a process can't be cut into more
        (256, 16, 50, 8, 16),  # ALFWorld: 13
        (256, 128, 4, 4, 16),  # Search-QA: 12
        (256, 3, 4, 1, 1),
        (None, 16, 15, 8, 1),
        (64, 16, None, 8, 1),
    ],
)
def test_a_step_has_about_the_launchers_rows(
    rows: int | None, tasks: int, turns: int | None, processes: int, steps: int
) -> None:
    assert optimiser_steps(rows, tasks, 8, turns, processes) == steps


def test_flags_override_yaml_and_yaml_overrides_the_preset(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("learning_rate: 0.5\ntop_p: 0.9\ntasks_per_round: 4\nrounds: 7\n")
    argv = ["--config", str(tmp_path / "run.yaml"), "--learning_rate", "0.25", "--method", "grpo"]
    _, config, _ = parse("webshop_tiny", [*argv, "--output_dir", str(tmp_path)])
    assert (config.learning_rate, config.top_p, config.method) == (0.25, 0.9, "grpo")
    assert config.generation_batch_size == 32 and config.max_steps == 7


def test_round_is_spread_over_processes_or_refused_with_numbers_that_work() -> None:
    assert round_shape(16, 8, 1, 8)["per_device_train_batch_size"] == 16
    assert round_shape(16, 8, 4, 4) == {
        "per_device_train_batch_size": 8,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 1,
    }
    with pytest.raises(ValueError, match="use 15"):
        round_shape(16, 8, 1, 5)
    with pytest.raises(ValueError, match=r"use one of \[1, 2, 4, 8, 16\]"):
        round_shape(16, 8, 3, 8)
    with pytest.raises(ValueError, match="webshop_7b"):
        preset("webshop_70b")
    with pytest.raises(ValueError, match="'released'"):
        preset("webshop_7b", "mine")


def test_plan_names_panel_rows_and_memory_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert recipe.main("webshop_7b", ["--plan", *CPU, "--output_dir", str(tmp_path)]) is None
    printed = capsys.readouterr().out
    for line in (
        "checksum",
        "memory per GPU, estimate",
        "host memory per node",
        "for all that are kept",
        "turn rows per round, at most",
        "not as by default: ",
    ):
        assert line in printed
    assert "1920" in printed and len(printed.splitlines()) < 40 and max(map(len, printed.splitlines())) <= 120
    assert "similarity_threshold" not in printed
    assert recipe.main("webshop_7b", ["--plan", "--all", "--output_dir", str(tmp_path)]) is None
    whole = capsys.readouterr().out
    assert "similarity_threshold: 0.8" in whole and "use_cpu: False" in whole and "bf16: True" in whole


@pytest.mark.full
def test_plan_makes_no_more_than_the_first_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that take long to make, as ALFWorld's games do, are placeholders in a plan, and a run makes all."""
    asked: list[tuple[str, int]] = []
    toy = toy_suite.suite()

    def sketch(split: str, made: int) -> list[dict[str, str]]:
        asked.append((split, made))
        whole = list(toy_dataset(made))
        return whole + [{**dict(toy_dataset(1)[0]), "task_id": f"{split}-{n}/{UNMADE}"} for n in range(made, 600)]

    slow = replace(toy, sketch=sketch, tasks=lambda split: pytest.fail("made"), panel=lambda name: pytest.fail("made"))
    monkeypatch.setattr("alignopsd_trl.commands.launch.job.load", lambda name, **options: slow)
    policy = toy_suite.save_policy(tmp_path / "policy")
    flags = toy_suite.arguments(tmp_path / "run", policy, panel="valid_seen/128", panel_limit="None", held_out=100)
    assert recipe.main("own", [*flags, *CPU, "--plan"], PLANNED) is None
    printed = capsys.readouterr().out
    assert f"valid_seen/128, 128 tasks, {UNMADE}" in printed and "500 training tasks" in printed
    assert set(asked) == {("train", 4), ("valid_seen", 0)}


def test_plan_counts_the_likeliest_tokens_that_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--plan", *CPU, "--output_dir", str(tmp_path), "--auxiliary_loss", "distribution"]
    recipe.main("webshop_7b", [*flags, "--distribution_size", "100"])
    printed = " ".join(capsys.readouterr().out.split())
    rows = int(printed.partition("turn rows per round, at most ")[2].split()[0])
    assert f"likeliest tokens {rows * 512 * 100 * 24 / 2**30:.1f}" in printed


PLANNED = {**LAPTOP, "environment": "toy", "model_name_or_path": "policy"}
FSDP = "recipes/accelerate/fsdp2.yaml"


def test_plan_for_a_node_is_drawn_up_on_a_laptop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    vllm = ["--use_vllm", "True", "--vllm_mode", "colocate"]
    flags = ["--plan", "--plan_for", str(Path(__file__).parents[2] / FSDP), *CPU, "--output_dir", str(tmp_path)]
    flags += ["--gpu_gib", "80"]
    assert recipe.main("webshop_7b", [*flags, *vllm]) is None
    printed = capsys.readouterr().out
    assert "8 processes, FSDP2" in printed and "trajectories per round" in printed and "1920" in printed
    for part in (
        "weights 3.5",
        "reference 3.5",
        "optimizer 7.1",
        "encoder 2.2",
        "gathered layers",
        "sampler",
        "24.0 GiB of 80",
    ):
        assert part in printed, part
    assert "DOES NOT FIT" not in printed
    assert recipe.main("webshop_7b", [*flags, *vllm, "--gpu_gib", "48"]) is None
    assert "DOES NOT FIT" in capsys.readouterr().out
    with pytest.raises(ValueError, match="vllm_gpu_memory_utilization=0.3 of 24 GiB"):
        recipe.main("webshop_7b", [*flags, *vllm, "--gpu_gib", "24"])
    with pytest.raises(ValueError, match="--config_file"):
        recipe.main("webshop_7b", [*flags[1:], *vllm])


@pytest.mark.parametrize(
    ("launch", "options", "says"),
    [
        (Launch(8, 1, "FSDP1"), {}, "set fsdp_version: 2"),
        (Launch(8, 1, "ZeRO-1"), {}, "ZeRO-1, which is not proven"),
        (Launch(6, 1, "FSDP2"), {"use_vllm": True, "vllm_tensor_parallel_size": 4}, r"Use one of \[1, 2, 3, 6\]"),
        (Launch(16, 2, "FSDP2"), {"use_vllm": True, "vllm_tensor_parallel_size": 16}, "the 8 processes of a node"),
    ],
)
def test_launches_that_can_not_work_are_refused_before_weights_are_loaded(
    tmp_path: Path, launch: Launch, options: dict, says: str
) -> None:
    config = AlignOPSDConfig(str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=8, **options)
    with pytest.raises(ValueError, match=says):
        check_launch(launch, config, installed=False)


def test_missing_vllm_is_said_before_weights_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alignopsd_trl.commands.launch.machine.find_spec", lambda name: None)
    config = AlignOPSDConfig(str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=8, use_vllm=True)
    with pytest.raises(ImportError, match="vllm"):
        check_launch(Launch(), config)
    check_launch(Launch(), config, installed=False)


def test_memory_falls_with_shards_and_adapters(tmp_path: Path) -> None:
    config = AlignOPSDConfig(str(tmp_path), use_cpu=True, bf16=False, beta=0.0, per_device_train_batch_size=8)
    shape, one, ddp, fsdp = BACKBONES["7b"], Launch(), Launch(8, 1, "DDP"), Launch(8, 1, "FSDP2", loads_once=True)
    whole = estimate(shape, config, one)
    assert whole.training["weights"] == pytest.approx(4 * shape.parameters / 2**30)
    assert whole.training["reference"] == 0 and whole.training["optimizer"] == 2 * whole.training["gradients"]
    sharded = estimate(shape, config, fsdp).training
    for part in ("weights", "gradients", "optimizer"):
        assert sharded[part] == pytest.approx(whole.training[part] / 8)
    assert sharded["gathered layers"] > 2
    spread = estimate(shape, config, ddp).training
    assert spread["weights"] == whole.training["weights"] and spread["gradient buckets"] == spread["gradients"]
    zero2 = estimate(shape, config, Launch(8, 1, "ZeRO-2")).training
    assert zero2["weights"] == whole.training["weights"] and zero2["optimizer"] == sharded["optimizer"]
    assert estimate(shape, config, one, Loading(2, 0.01)).training["optimizer"] < 2
    with pytest.raises(ValueError, match="nobody/nothing.*hf download"):
        backbone("nobody/nothing")


def test_host_and_disk_follow_from_who_loads_and_what_is_kept(tmp_path: Path) -> None:
    options = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 8, "max_steps": 150, "save_steps": 25}
    shape, weights = BACKBONES["7b"], 4 * BACKBONES["7b"].parameters / 2**30
    config = AlignOPSDConfig(str(tmp_path), beta=0.01, **options)
    assert estimate(shape, config, Launch(8, 1, "FSDP2")).host == pytest.approx(16 * weights)
    assert estimate(shape, config, Launch(8, 1, "FSDP2", loads_once=True)).host == pytest.approx(2 * weights)
    found = estimate(shape, config, Launch())
    assert found.checkpoint == pytest.approx(3 * weights) and found.kept == pytest.approx(6 * 3 * weights + weights)
    few = estimate(shape, AlignOPSDConfig(str(tmp_path), save_total_limit=2, **options), Launch())
    assert few.kept == pytest.approx(2 * 3 * weights + weights)


def test_encoders_are_counted_where_their_size_is_known(tmp_path: Path) -> None:
    assert encoder_bytes("lexical") == encoder_bytes(None) == 0
    assert encoder_bytes("Qwen/Qwen3-Embedding-0.6B") == pytest.approx(2.38e9, rel=0.01)
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    assert encoder_bytes(str(tmp_path)) == 1000
    assert encoder_bytes("somebody/encoder") is None


OWN = {**LAPTOP, "environment": "webshop_tiny", "model_name_or_path": "tiny", "tasks_per_round": 4, "rounds": 3}


def test_recipe_of_ones_own_needs_no_edit_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset by hand, or a module that has one: both are read like a shipped recipe's."""
    (tmp_path / "own_maze.py").write_text(f"PRESET = {OWN!r}\n")
    (tmp_path / "own_empty.py").write_text("")
    (tmp_path / "own_broken.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, own in (("maze", OWN), ("own_maze", None)):
        arguments, config, model = parse(name, ["--rounds", "5"], own)
        assert (arguments.environment, model.model_name_or_path, config.max_steps) == ("webshop_tiny", "tiny", 5)
        assert config.generation_batch_size == 32 and config.output_dir == os.path.abspath(f"outputs/{name}")
    for name, own, message in (
        ("maze", {"environment": "maze"}, "does not set 'model_name_or_path'"),
        ("maze", [1], "is a list; write a mapping"),
        ("own_empty", None, "with no PRESET in it"),
        ("no_such_module", None, "is unknown; known are .*webshop_tiny.*PRESET"),
        ("no such", None, "is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            parse(name, [], own)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        parse("own_broken", [])
    with pytest.raises(ValueError, match="has no preset 'released'"):
        parse("maze", ["--preset", "released"], OWN)


def test_the_recipe_that_builds_its_trainer_by_hand_has_the_presets_settings() -> None:
    _, expected, _ = parse("webshop_3b", [*CPU, "--bf16", "False"])
    assert webshop_3b.config(1, use_cpu=True, bf16=False).to_dict() == expected.to_dict()
    for processes in (2, 4):
        written = webshop_3b.config(processes, use_cpu=True, bf16=False)
        shape = round_shape(16, 8, 1, processes)
        assert {name: getattr(written, name) for name in shape} == shape


def test_the_recipe_that_builds_its_trainer_by_hand_evaluates_trains_and_pushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    class Recorded:
        def __init__(self, model: str, args: AlignOPSDConfig, **parts: Any):
            _, _, chosen = parse("webshop_3b", CPU)
            assert (model, args.hub_model_id) == (chosen.model_name_or_path, "me/shop")
            assert (parts["skill_bank"], parts["encoder"]) == ("webshop", preset("webshop_3b")["encoder"])
            assert len(parts["train_dataset"]) > 0 and callable(parts["environment_factory"])

        def __getattr__(self, name: str) -> Any:
            return lambda *given: called.append(name)

    monkeypatch.setattr(webshop_3b, "AlignOPSDTrainer", Recorded)
    monkeypatch.setattr(webshop_3b, "load", lambda name, data_dir, reward: load(name, reward=reward))
    monkeypatch.setattr(webshop_3b, "config", partial(webshop_3b.config, use_cpu=True, bf16=False))
    webshop_3b.main("DATA", "me/shop")
    assert called == ["evaluate_panel", "train", "evaluate_panel", "save_model", "push_to_hub"]


ONE_GPU = ["webshop_1_5b", "hops_1_5b"]


def one_gpu(name: str) -> dict:
    return runpy.run_path(str(Path(__file__).parents[2] / "recipes" / f"{name}.py"))["PRESET"]


@pytest.mark.parametrize("name", ONE_GPU)
def test_a_recipe_for_one_gpu_follows_a_frozen_teacher(name: str, tmp_path: Path) -> None:
    for flags in ([], ["--method", "grpo"]):
        _, config, model = parse(name, ["--plan", "--output_dir", str(tmp_path), *flags], one_gpu(name))
        assert (model.model_name_or_path, model.dtype) == (BACKBONES["1.5b"].hub_id, "bfloat16") and model.use_peft
        assert (config.use_vllm, config.vllm_mode, config.bf16, config.beta) == (True, "colocate", True, 0.0)
        assert (config.teacher_model_kind, config.auxiliary_loss) == ("base", "distribution")
        assert config.generation_batch_size == 32 and config.steps_per_round == 4 and config.max_steps == 200
    _, config, model = parse(name, [*CPU, "--bf16", "False", "--dtype", "float16"])
    assert (config.bf16, model.dtype) == (False, "float16")


@pytest.mark.full
@pytest.mark.parametrize("name", ONE_GPU)
def test_a_recipe_for_one_gpu_fits_24_gib(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--plan", "--plan_for", "one_gpu", "--gpu_gib", "24", "--output_dir", str(tmp_path)]
    assert recipe.main(name, where, one_gpu(name)) is None
    printed = capsys.readouterr().out
    assert "memory per GPU, estimate" in printed and "DOES NOT FIT" not in printed, printed


class _Gpu:
    """Answers as a machine with one GPU would."""

    def __init__(self, patch: pytest.MonkeyPatch, bfloat16: bool = True, gib: float = 24):
        memory = int(gib * 2**30)
        answers = {
            "is_available": True,
            "is_bf16_supported": bfloat16,
            "get_device_name": "a GPU",
            "mem_get_info": (memory, memory),
            "get_device_properties": SimpleNamespace(total_memory=memory),
        }
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, lambda *ignored, answer=answer, **also: answer)


@pytest.mark.parametrize(("bfloat16", "use_cpu"), [(True, False), (False, False), (True, True)])
def test_bfloat16_is_the_default_where_a_gpu_has_it(
    bfloat16: bool, use_cpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert AlignOPSDConfig(str(tmp_path), use_cpu=True, per_device_train_batch_size=8).bf16 is False
    monkeypatch.setattr("trl.GRPOConfig.__post_init__", lambda self: None)
    for check in ("_check_groups", "_check_engine", "_check_conversation", "_check_supported"):
        monkeypatch.setattr(AlignOPSDConfig, check, lambda *ignored: None)
    _Gpu(monkeypatch, bfloat16)
    assert AlignOPSDConfig(str(tmp_path), use_cpu=use_cpu).bf16 is (bfloat16 and not use_cpu)


def test_a_tiny_recipe_leaves_a_gpu_alone_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job.of(*parse("webshop_tiny", ["--output_dir", str(tmp_path)]))
    assert job.args.use_cpu and job.args.bf16 is False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "GPU" not in opening_facts(job)
    _Gpu(monkeypatch)
    assert "--use_cpu False takes it" in opening_facts(job)["GPU"]
    job.args.use_cpu = False
    said = opening_facts(job)
    assert said["GPU"] == "a GPU, 24 GiB free, float32" and "--plan says if vLLM has room" in said["sampling"]


def test_keys_and_values_take_a_share_of_a_gpu() -> None:
    """And no less than several of the longest rows; on the CPU as much as always."""
    gib = 2**30
    assert cache_limits(None, row=7) == CacheLimits(512 << 20, 128 << 20)
    assert cache_limits(20 * gib, row=gib // 4) == CacheLimits(8 * gib, 2 * gib, bounds_rollout=True)
    assert cache_limits(-1.0, row=gib) == CacheLimits(SEVERAL * gib, SEVERAL * gib, bounds_rollout=True)


@pytest.mark.parametrize("bank", ["webshop", "alfworld"])
@pytest.mark.parametrize("planned", [True, False])
def test_a_bank_of_another_environment_is_said_by_plan_and_run(
    bank: str, planned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(AlignOPSDTrainer, "train", lambda self: exit("stops here"))
    flags = [*CPU, "--skill_bank", bank, "--output_dir", str(tmp_path / "run"), *(["--plan"] if planned else [])]
    with contextlib.nullcontext() if planned else pytest.raises(SystemExit, match="stops here"):
        recipe.main("webshop_tiny", flags)
    said = " ".join(capsys.readouterr().out.split())
    foreign = "WRONG skill bank of 'alfworld' is used for environment 'webshop'; its own is 'webshop'"
    assert (foreign in said) is (bank == "alfworld")
