"""Model families: each trains as it is, or is refused in words before its weights are loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.families import FAMILIES, family_trainer, makes_calls, save_family, tokenizer_of, try_family
from fakes.sweeps import mostly_full
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import losses, make_trainer, trained, watch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from alignopsd_trl.runs.health import RunStopped
from alignopsd_trl.sampling.loop import plain_sampler

TRIED = (
    *("Qwen2.5", "Qwen3", "Qwen3-MoE", "Qwen3.5", "Llama 3", "Gemma 3", "Mistral", "OLMo 3", "GLM-4.5 (MoE)"),
    *("LFM2", "GPT-2", "Phi-3"),
)


@pytest.mark.full
@pytest.mark.parametrize("name", TRIED)
def test_a_family_trains_in_both_forms_of_history_and_calls_tools(name: str, tmp_path: Path) -> None:
    save_family(FAMILIES[name], tmp_path / "policy")
    kinds = ["window", "calls" if makes_calls(FAMILIES[name]) else "conversation"]
    for kind in kinds:
        found = try_family(tmp_path / "policy", tmp_path / kind, kind)
        assert found["log-probs"] < 1e-4
        assert (found["calls"] > 0) == (kind == "calls")


def _llama(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any] = len) -> Path:
    """Llama 3, of whose weights a function changes some."""
    save_family(FAMILIES["Llama 3"], folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _never_loaded(patch: pytest.MonkeyPatch) -> None:
    def loading(*given: Any, **options: Any) -> Any:
        raise AssertionError("the weights were loaded")

    patch.setattr("trl.trainer.grpo_trainer.create_model_from_path", loading)


FOUR = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Qwen3-MoE", {}, {"router_aux_loss_coef": None}, r"load-balancing .* set router_aux_loss_coef=0.0"),
    ("Phi-3 (longrope)", {}, {"max_prompt_length": 4090}, r"4096 positions.*prompt_length=4072 or less.*'longrope'"),
    ("GPT-2", {}, {"max_prompt_length": 8190}, r"8192 positions.*max_prompt_length=8168 or less.*learned"),
    ("Llama 3", {"num_hidden_layers": 1}, {}, r"holds model\.layers\.1\.\S+, and the model of its config"),
    ("Llama 3", {"num_hidden_layers": 0}, {}, r"num_hidden_layers=0; take one with layers"),
    ("Qwen3-MoE", {"num_hidden_layers": 1}, {}, r"holds model\.layers\.1\.\S+, and"),
    ("Qwen3", FOUR, {}, r"lacks \d+ of \d+ weights, the first model\.layers\.2"),
    ("Qwen3-MoE", {"num_experts": 3, "num_local_experts": 3}, {}, r"of the shape \[4, .*, and not \[3, .*; copy the"),
    ("Qwen2.5", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, {}, r"holds model.layers.0.\S+bias"),
]


@pytest.mark.parametrize(("name", "changed", "options", "message"), mostly_full(REFUSED, quick=5))
def test_it_is_refused_before_weights_are_loaded(
    name: str, changed: Any, options: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_family(FAMILIES[name], policy := tmp_path / "policy")
    file = policy / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    _never_loaded(monkeypatch)
    with pytest.raises(ValueError, match=message):
        family_trainer(policy, tmp_path / "run", "window", **options)


def test_weights_of_other_heads_and_predictions_are_no_matter(tmp_path: Path) -> None:
    others = {"v_head.summary.weight": torch.ones(1, 32), "model.mtp_layers.0.norm.weight": torch.ones(32)}
    policy = _llama(tmp_path / "policy", lambda weights: weights.update(others))
    family_trainer(policy, tmp_path / "run", "window")


@pytest.mark.parametrize("kind", mostly_full([torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int32]))
def test_quantised_weights_without_their_configuration_are_named(kind: torch.dtype, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    policy = _llama(tmp_path / "policy", lambda weights: weights.update({name: weights[name].to(kind)}))
    with pytest.raises(ValueError, match=r"up_proj.weight of the type \w+, quantised, but its config"):
        family_trainer(policy, tmp_path / "run", "window")


def test_a_pickle_of_weights_is_not_read(tmp_path: Path) -> None:
    policy = _llama(tmp_path / "policy")
    torch.save(load_file(policy / "model.safetensors"), policy / "pytorch_model.bin")
    (policy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"pickle \(pytorch_model.bin\).*save it as safetensors"):
        family_trainer(policy, tmp_path / "run", "window")


@pytest.mark.parametrize("special", [False, True])
def test_words_that_the_model_does_not_embed_are_refused(special: bool, tmp_path: Path) -> None:
    """Special tokens may go beyond, as those of pictures in a model of text: no text is encoded to them."""
    policy = _llama(tmp_path / "policy")
    tokenizer = tokenizer_of(FAMILIES["Llama 3"])
    tokenizer.add_tokens(["<picture>"], special_tokens=special)
    tokenizer.save_pretrained(policy)
    if special:
        family_trainer(policy, tmp_path / "run", "window")
        return
    with pytest.raises(ValueError, match=r"knows \d+ tokens, and its model embeds \d+: call model.resize_token"):
        family_trainer(policy, tmp_path / "run", "window")


def _spoil(file: Path) -> None:
    weights = load_file(file)
    next(iter(weights.values())).view(-1)[3] = float("nan")
    save_file(weights, file, {"format": "pt"})


def test_weights_that_are_not_finite_are_named_at_the_start(tmp_path: Path) -> None:
    policy = _llama(tmp_path / "policy")
    _spoil(policy / "model.safetensors")
    with pytest.raises(ValueError, match=r"weights of model='.*policy' are not finite; copy it again"):
        family_trainer(policy, tmp_path / "run", "window")


@pytest.mark.full
def test_a_checkpoint_with_weights_that_are_not_finite_is_not_advised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"save_steps": 1, "save_strategy": "steps"}
    make_trainer(tmp_path, max_steps=2, **options).train()
    sound = make_trainer(tmp_path, max_steps=3, **options)
    sound.train(resume_from_checkpoint=True)
    assert "missing keys" not in caplog.text, "a file holds tied weights once"
    _spoil(tmp_path / "checkpoint-3" / "model.safetensors")
    (tmp_path / "checkpoint-3" / "files.json").unlink()  # whose checksums would leave the checkpoint out
    with pytest.raises(RunStopped, match=r"checkpoint-3 are not finite.*resume from an earlier") as told:
        make_trainer(tmp_path, max_steps=4, **options).train(resume_from_checkpoint=True)
    assert "last good" not in str(told.value) and "learning_rate" not in str(told.value)
    assert vars(told.value)["damaged"] == "checkpoint-3" and vars(told.value).get("kept") != "checkpoint-3"


@pytest.mark.full
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_dropout_inside_of_attention_is_switched_off_too(attention: str, tmp_path: Path) -> None:
    """Without it teacher, policy and sampler would differ by noise, and the self-check would stop the run."""
    found = []
    for dropout in (0.0, 0.5):
        model = build_model(build_tokenizer())
        model.config.attention_dropout = dropout
        model.save_pretrained(tmp_path / "policy")
        options = {"policy": tmp_path / "policy", "model_init_kwargs": {"attn_implementation": attention}}
        trainer = trained(tmp_path / str(dropout), method="align_opsd", beta=0.05, max_steps=2, **options)
        found.append(losses(trainer))
    assert found[0] == found[1]


@pytest.mark.full
def test_dropout_that_is_wanted_stays(tmp_path: Path) -> None:
    model = build_model(build_tokenizer())
    model.config.attention_dropout = 0.5
    model.save_pretrained(tmp_path / "policy")
    trainer = make_trainer(tmp_path, policy=tmp_path / "policy", disable_dropout=False)
    assert trainer.model.model.layers[0].self_attn.attention_dropout == 0.5


TASTES: dict[str, dict[str, Any]] = {
    "cuts": {"top_p": 0.3, "top_k": 2, "min_p": 0.9, "typical_p": 0.2, "epsilon_cutoff": 0.2, "eta_cutoff": 0.2},
    "penalties": {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1, "encoder_repetition_penalty": 2.0},
    "words": {"suppress_tokens": [*range(3, 90)], "bad_words_ids": [[20], [21, 22]], "sequence_bias": [[[30], 9.0]]},
    "first": {"begin_suppress_tokens": [*range(90, 200)], "forced_bos_token_id": 40, "forced_eos_token_id": 41},
    "lengths": {"min_new_tokens": 8, "min_length": 900, "exponential_decay_length_penalty": [1, 2.0], "num_beams": 3},
    "forms": {"temperature": 9.0, "guidance_scale": 2.0, "watermarking_config": {"bias": 8.0}},
}  # fmt: skip


def _policy(folder: Path, taste: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    tokenizer = save_family(FAMILIES["Gemma 3"], folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config = GenerationConfig(**{"do_sample": True, **taste})
    return model, tokenizer


def _drawn(model: PreTrainedModel, tokenizer: Any, temperature: float) -> list[list[int]]:
    torch.manual_seed(0)
    options = {"temperature": temperature, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    sampler = plain_sampler(model, tokenizer, [tokenizer.eos_token_id], options, 8, 64)
    return sampler.respond([[20, 21, 22], [30, 31]] * 8).ids


@pytest.mark.parametrize("temperature", mostly_full([1.0, 0.0]))
@pytest.mark.parametrize("taste", mostly_full(TASTES, quick=2))
def test_a_models_own_generation_config_shapes_no_sampling(
    taste: str, temperature: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers_logging.warning_once.cache_clear()  # what another test was told
    model, tokenizer = _policy(tmp_path, {})
    wanted = _drawn(model, tokenizer, temperature)
    model, tokenizer = _policy(tmp_path, TASTES[taste])
    first = next(iter(TASTES[taste]))
    assert _drawn(model, tokenizer, temperature) == wanted
    assert _drawn(model, tokenizer, temperature) == wanted
    assert caplog.text.count("only the run's own options do") == 1 and f"{first}=" in caplog.text
    assert getattr(model.generation_config, first) == TASTES[taste][first], "what is saved stays the model's own"


@pytest.mark.full
def test_a_run_samples_and_evaluates_by_its_own_options_alone(tmp_path: Path) -> None:
    runs, ends = [], [*range(60, 160)]
    taste = TASTES["penalties"] | TASTES["lengths"] | {"min_p": 0.9, "suppress_tokens": [*range(3, 90)]}
    for name, own in (("plain", {}), ("hostile", taste)):
        model, tokenizer = _policy(tmp_path / name, own)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *ends]
        model.generation_config.save_pretrained(tmp_path / name)
        trainer: Any = family_trainer(tmp_path / name, tmp_path / f"{name} run", "window", method="grpo")
        watch(trainer)
        trainer.train()
        rows = [row["completion_ids"] for row in trainer.seen_rows]
        runs.append((rows, losses(trainer), trainer.evaluate()["eval_episodes/score"]))
        saved = GenerationConfig.from_pretrained(tmp_path / f"{name} run" / "checkpoint-2")
        assert (saved.num_beams, saved.eos_token_id) == (own.get("num_beams"), [tokenizer.eos_token_id, *ends])
    (rows, *rest), (others, *same) = runs
    assert rest == same and all(map(torch.equal, rows, others))
    assert all(torch.isin(one, torch.tensor(ends)).any() for one in rows), "they end responses in both"


REMOTE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own_kind"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.mark.parametrize("where", ["args", "model_init_kwargs", None])
def test_code_of_a_models_folder_runs_where_it_is_trusted(
    where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path / "modules")])
    policy = _llama(tmp_path / "policy")
    (policy / "own_code.py").write_text(REMOTE)
    names = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnForCausalLM"}
    changed = {"model_type": "own_kind", "architectures": ["OwnForCausalLM"], "auto_map": names}
    file = policy / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    options: dict[str, Any] = {"args": {"trust_remote_code": True}, None: {}}.get(
        where, {"model_init_kwargs": {"trust_remote_code": True}}
    )
    if where is None:
        with pytest.raises(ValueError, match="trust_remote_code"):
            family_trainer(policy, tmp_path / "run", "window")
        return
    trainer = family_trainer(policy, tmp_path / "run", "window", **options)
    assert type(trainer.model).__name__ == "OwnForCausalLM"
