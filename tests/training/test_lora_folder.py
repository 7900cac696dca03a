"""A LoRA run's folder is a model: its base is found, its adapter goes on training and plays as it was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.toy import ToyEnvironment, toy_dataset
from fakes.toy_suite import arguments, save_policy
from fakes.trainers import make_config, make_trainer, variety
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from alignopsd_trl import AlignOPSDTrainer
from alignopsd_trl.checks.loading import load_policy
from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.launch.job import Job, plan
from alignopsd_trl.commands.launch.recipe import main as recipe
from alignopsd_trl.common.models import base_of

LORA = LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)


def adapter(folder: Path, base: str = "base") -> Path:
    """A folder as a LoRA run leaves it: an adapter that changes the policy, and the tokenizer; its base beside it."""
    save_policy(folder / "base")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "base"), LORA)
    adapted.peft_config["default"].base_model_name_or_path = base
    adapted.save_pretrained(folder / "run")
    for file in (folder / "base").glob("tokenizer*"):
        shutil.copy(file, folder / "run")
    for file in (folder / "base").glob("*.jinja"):
        shutil.copy(file, folder / "run")
    return folder / "run"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(3, 12).unsqueeze(0)).logits


@pytest.mark.full
def test_a_run_of_an_adapter_is_played_and_trained_on_as_it_was(tmp_path: Path) -> None:
    first = make_trainer(
        tmp_path / "first", max_steps=1, save_strategy="steps", save_steps=1, parts={"peft_config": LORA}
    )
    first.train()
    first.save_model()
    trained = logits(first.accelerator.unwrap_model(first.model))
    for place in (tmp_path / "first", tmp_path / "first" / "checkpoint-1"):
        model, _ = load_policy(str(place))
        assert not isinstance(model, PeftModel) and logits(model).equal(trained)
        merged, _ = load_policy(str(place), trains=True)
        assert torch.allclose(logits(merged), trained, atol=1e-5)
        assert all(one.requires_grad for one in merged.parameters())
    second = make_trainer(
        tmp_path / "second", policy=tmp_path / "first", max_steps=1, beta=0.1, parts={"reward_funcs": variety}
    )
    policy = second.accelerator.unwrap_model(second.model)
    assert isinstance(policy, PeftModel) and policy.peft_config["default"].r == 4
    assert logits(policy).equal(trained), "it goes on where the first run ended"
    before = {name: one.detach().clone() for name, one in policy.named_parameters()}
    second.train()
    moved = {name for name, one in policy.named_parameters() if not one.equal(before[name])}
    assert moved and all("lora" in name and ".default" in name for name in moved), "the base and the reference stay"
    with pytest.raises(ValueError, match="peft_config with model=.*leave peft_config out"):
        make_trainer(tmp_path / "third", policy=tmp_path / "first", parts={"peft_config": LORA})


@pytest.mark.full
def test_a_run_on_an_adapter_resumes_as_if_it_had_not_ended(tmp_path: Path) -> None:
    run = adapter(tmp_path)
    options = {"policy": run, "save_strategy": "steps", "save_steps": 1, "parts": {"reward_funcs": variety}}
    options |= {"lr_scheduler_type": "constant"}
    whole = make_trainer(tmp_path / "whole", max_steps=2, **options)
    whole.train()
    make_trainer(tmp_path / "cut", max_steps=1, **options).train()
    again = make_trainer(tmp_path / "cut", max_steps=2, **options)
    again.train(resume_from_checkpoint=True)
    assert logits(again.model).equal(logits(whole.model))
    assert not logits(again.model).equal(logits(load_policy(str(run))[0]))


def test_a_trainer_takes_the_folder_with_its_tokenizer(tmp_path: Path) -> None:
    run = adapter(tmp_path)
    parts = {"skill_bank": "webshop", "encoder": "lexical"}
    trainer = AlignOPSDTrainer(str(run), make_config(tmp_path / "out"), ToyEnvironment, toy_dataset(16), **parts)
    assert trainer.processing_class.padding_side == "left" and isinstance(trainer.model, PeftModel)
    assert trainer.args.model_init_kwargs is None


@pytest.mark.full
def test_the_commands_take_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = adapter(tmp_path)
    argv = arguments(tmp_path / "out", run, rounds=1)
    assert recipe("webshop_tiny", argv)["adapter"] is True
    assert base_of(str(tmp_path / "out")) == str(tmp_path / "base"), "its own folder is such a model again"
    capsys.readouterr()
    main(["view", str(tmp_path / "out")])
    shown = capsys.readouterr()
    assert "view.html" in shown.out and not shown.err, "a run's own files are as they should be"
    limits = ["--limit", "2", "--max_completion_length", "8"]
    main(["evaluate", "--model", str(run), "--environment", "tests.fakes.toy_suite", *limits])
    assert "panel" in capsys.readouterr().out


def test_a_plan_counts_the_adapter_and_refuses_another_one(tmp_path: Path) -> None:
    run = adapter(tmp_path)
    argv = arguments(tmp_path / "out", run)

    def planned(*more: str) -> str:
        return plan(Job.of(*parse("webshop_tiny", [*argv, *more])))

    alone, whole = planned(), plan(Job.of(*parse("webshop_tiny", arguments(tmp_path / "out", tmp_path / "base"))))
    assert alone != whole and planned("--use_peft", "--lora_r", "4") and "memory per GPU" in alone
    with pytest.raises(ValueError, match=r"--lora_r 8: model=.* is an adapter of 4, which goes on training; leave it"):
        planned("--use_peft", "--lora_r", "8")
    with pytest.raises(ValueError, match=r"--lora_modules_to_save \['lm_head'\]: model=.* is an adapter of None"):
        planned("--use_peft", "--lora_modules_to_save", "lm_head")


def test_the_base_is_found_by_name_by_place_and_beside_the_adapter(tmp_path: Path, monkeypatch: Any) -> None:
    run, settings = adapter(tmp_path), tmp_path / "run" / "adapter_config.json"
    written = json.loads(settings.read_text())

    def found(base: Any) -> str | None:
        settings.write_text(json.dumps(written | {"base_model_name_or_path": base}))
        return base_of(str(run))

    assert found("base") == str(tmp_path / "base") == found(str(tmp_path / "base"))
    assert (found("tiny") or "").endswith("data/tiny_webshop") and found("owner/name") == "owner/name"
    assert found("/elsewhere/alignopsd_trl/data/tiny_trips") == base_of(str(run)) != "/elsewhere"
    assert base_of("tiny") is None and base_of("owner/name") is None
    unnamed = [(base, "is not named") for base in ("", None, ["base"], 5)]
    elsewhere = [(base, "is not here; bring it back") for base in ("/gone/base", "my base", "a\nb", "x/y/z", "~/x")]
    for base, told in (*unnamed, *elsewhere):
        with pytest.raises(ValueError, match=f"is an adapter, and its base .*{told}"):
            found(base)
    with pytest.raises(ValueError, match="is an adapter too; merge it"):
        found(str(run))


def test_an_adapter_of_another_base_is_named(tmp_path: Path) -> None:
    run = adapter(tmp_path)
    settings = json.loads((run / "adapter_config.json").read_text())
    (run / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "tiny_trips"}))
    with pytest.raises(ValueError, match="its adapter can't be used"):
        load_policy(str(run))
    (run / "adapter_config.json").write_text(json.dumps(settings))
    file = run / "adapter_model.safetensors"
    weights = load_file(file)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match="adapter_model.safetensors is cut short or damaged"):
        load_policy(str(run))
    save_file(weights | {"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": torch.ones(4, 4)}, file)
    with pytest.raises(ValueError, match=r"it holds .*layers\.9.*, and its base has no such layer"):
        load_policy(str(run))
    file.unlink()
    (run / "training_args.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"holds no weights \(adapter_model"):
        load_policy(str(run))
    file.mkdir()
    with pytest.raises(ValueError, match="adapter_model.safetensors is cut short or damaged"):
        load_policy(str(run))
    file.rmdir()
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), prompts).save_pretrained(run)
    with pytest.raises(ValueError, match="learnt prompts"):
        load_policy(str(run))
