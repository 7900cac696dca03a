"""QLoRA: adapters on a policy of bitsandbytes' 4 bits, which has a path on CPUs; and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.trainers import make_config, make_trainer, variety
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from alignopsd_trl.checks.loading import check_quantised, settle_quantised
from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.launch.job import Job
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.scoring.trl_scoring import PolicyScorer

FOUR = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def lora() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def quantised(folder: Path, compute: torch.dtype = torch.float32, **options: Any) -> Any:
    """Two rounds of the toy game at a learning rate that moves the adapter."""
    config = BitsAndBytesConfig(**FOUR, bnb_4bit_compute_dtype=compute)
    parts = {"peft_config": lora(), "quantization_config": config, "reward_funcs": variety}
    return make_trainer(folder, script=False, parts=parts, **{"max_steps": 2, "max_turns": 3} | options)


def apart(trainer: Any) -> tuple[float, float]:
    """Mean and largest difference of the sampler's log-probs from the scorer's, over fresh responses."""
    rows = trainer.seen_rows[-1]
    shown = zip(rows["prompt_ids"][:8], rows["prompt_mask"][:8], strict=True)
    prompts = [ids[mask.bool()].tolist() for ids, mask in shown]
    with trainer.backend.ready(), trainer.backend.prefixes() as prefixes:
        ids, sampled = trainer.backend.sampler(1.0, 12, prefixes).respond(prompts)
    every = torch.arange(len(prompts))
    forwards = Forwards(pad_id=trainer.processing_class.pad_token_id, budget=4096, agree=trainer.processes.agree)
    scores = score_pairs(PolicyScorer(trainer), Ragged.of(prompts), Ragged.of(ids), every, every, forwards)
    gaps = [(scores[row, : len(one)] - torch.tensor(one)).abs() for row, one in enumerate(sampled)]
    return float(torch.cat(gaps).mean()), float(torch.cat(gaps).max())


def packed(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.named_parameters() if value.dtype == torch.uint8}


@pytest.mark.full
class TestTraining:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("bitsandbytes")

    @pytest.mark.parametrize(
        "options",
        [
            {"method": "grpo", "beta": 0.1},
            {"method": "align_opsd", "teacher_model_kind": "base", "auxiliary_loss": "distribution"},
        ],
        ids=lambda options: options["method"],
    )
    def test_two_rounds_are_resumed_saved_and_loaded_again(self, options: dict[str, Any], tmp_path: Path) -> None:
        own = {**options, "save_strategy": "steps", "save_steps": 1}
        trainer = quantised(tmp_path, **own)
        before = packed(trainer.model)
        assert before, "the linear layers hold 4 bits"
        trainer.train()
        assert all(torch.equal(before[name], value) for name, value in packed(trainer.model).items())
        assert {one.dtype for one in trainer.model.parameters() if one.requires_grad} == {torch.float32}
        first, second = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert first["grad_norm"] > 0 and second["grad_norm"] > 0
        checked = {name: value for name, value in first.items() if name.startswith("self_check/")}
        assert {"self_check/batching", "self_check/shared_prefix"} <= checked.keys() and max(checked.values()) < 1e-4
        for rows in trainer.seen_rows:
            assert rows["tool_mask"].any() and rows["advantages"].abs().max() > 0
        mean, largest = apart(trainer)
        print(f"{options['method']}: sampler and scorer are {mean:.1e} apart in the mean, {largest:.1e} at most")
        assert largest < 1e-4

        trainer.save_model(str(tmp_path / "saved"))
        assert (tmp_path / "saved" / "adapter_model.safetensors").is_file()
        config = BitsAndBytesConfig(**FOUR, bnb_4bit_compute_dtype=torch.float32)
        policy = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", quantization_config=config)
        loaded = PeftModel.from_pretrained(policy, str(tmp_path / "saved"))
        settle_quantised(policy)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float32)
        ids = trainer.seen_rows[-1]["prompt_ids"][:1]
        with torch.no_grad():
            expected = trainer.model(ids).logits.log_softmax(-1)
            assert (loaded(ids).logits.log_softmax(-1) - expected).abs().max() < 0.01
            full = PeftModel.from_pretrained(whole, str(tmp_path / "saved"))(ids).logits.log_softmax(-1)
        print(f"on the whole base weights {(full - expected).abs().mean():.1e} in the mean")

        again = quantised(tmp_path, **own)
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
        assert again.state.global_step == 2
        name, value = next((name, one) for name, one in trainer.model.named_parameters() if "lora_B" in name)
        assert torch.equal(value, again.model.get_parameter(name)), "the same second round"

    def test_a_merge_moves_the_4_bits_which_is_why_no_engine_gets_them(self, tmp_path: Path) -> None:
        trainer = quantised(tmp_path, max_steps=1)
        trainer.train()
        before = packed(trainer.model)
        trainer.model.merge_adapter()
        trainer.model.unmerge_adapter()
        moved = [name for name, value in packed(trainer.model).items() if not torch.equal(before[name], value)]
        assert moved

    def test_an_evaluation_leaves_the_weights_as_they_are(self, tmp_path: Path) -> None:
        trainer, ids = quantised(tmp_path), torch.arange(4, 20).unsqueeze(0)
        before, scores = packed(trainer.model), trainer.model(ids).logits
        with torch.no_grad():
            assert torch.allclose(trainer.model.eval()(ids).logits, scores, atol=1e-6)
        assert all(torch.equal(before[name], value) for name, value in packed(trainer.model).items())

    def test_what_rounds_is_not_taken_for_exact(self, tmp_path: Path) -> None:
        trainer = quantised(tmp_path, compute=torch.bfloat16, max_steps=1)
        trained = trainer.scorer.trained
        assert not trained.computes_exactly and not trained.scores_as_sampled
        trainer.train()


@pytest.mark.parametrize(
    ("options", "given", "adapter", "says"),
    [
        ({}, {"load_in_8bit": True}, True, "load_in_8bit=True is not supported.*use load_in_4bit"),
        ({}, {"quant_method": "gptq"}, True, "quantization_config of gptq is not supported"),
        ({}, FOUR, False, "load_in_4bit=True: no weight is left to train; pass a peft_config"),
        ({"use_vllm": True}, FOUR, True, "load_in_4bit=True: a push to use_vllm=True would merge"),
        ({"model_init_kwargs": {"quantization_config": FOUR}}, None, False, "no weight is left"),
    ],
)
def test_what_can_not_be_is_refused_by_name(
    options: dict[str, Any], given: Any, adapter: bool, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        check_quantised(given, make_config(tmp_path, **options), adapter)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alignopsd_trl.checks.loading.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"bitsandbytes is not installed; pip install 'alignopsd-trl\[quantized\]'"):
        check_quantised(FOUR, make_config(tmp_path), True)
    check_quantised(FOUR, make_config(tmp_path), True, elsewhere=True)
    check_quantised(None, make_config(tmp_path), False)


@pytest.mark.parametrize(("flags", "says"), [(["--dtype", "auto", "--use_peft"], "dtype='auto'"), ([], "peft_config")])
def test_a_recipe_refuses_before_weights_are_loaded(flags: list[str], says: str, tmp_path: Path) -> None:
    given = ["--use_cpu", "True", "--load_in_4bit", "--output_dir", str(tmp_path / "run"), *flags]
    with pytest.raises(ValueError, match=says):
        Job.of(*parse("webshop_tiny", given)).check()
