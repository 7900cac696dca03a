"""A recipe for a model that a user names, by its configuration alone."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.own_task import fails
from peft import LoraConfig, get_peft_model

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.own_task.hub_model import HubModel, fit, recipe_changes

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": {
        **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28},
        **{"num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
        **{"tie_word_embeddings": False, "max_position_embeddings": 32768},
    },
    "qwen2.5-14b": {
        **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 5120, "num_hidden_layers": 48},
        **{"num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 13824, "vocab_size": 152064},
        **{"tie_word_embeddings": False, "max_position_embeddings": 32768},
    },
    "llama-3.2-3b": {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28},
        **{"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192},
        **{"vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 131072},
    },
    "gemma-2-2b": {
        **{
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "hidden_size": 2304,
            "num_hidden_layers": 26,
        },
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216},
        **{"vocab_size": 256000, "max_position_embeddings": 8192, "final_logit_softcapping": 30.0},
    },
    "a-mixture": {
        **{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 512},
        **{"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1024},
        **{"moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
        **{"max_position_embeddings": 8192, "router_aux_loss_coef": 0.001},
    },
    "sees": {
        **{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
        "text_config": {
            **{"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 8192},
        },
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    },
    "short": {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 1024},
    },
}
"""Configurations as published, or of the same kind."""


def _described(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(SHAPES[name]))
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [
        ("Qwen/Qwen3-4B", 24, {"use_vllm": True, "tasks_per_round": 4, "num_generations": 8}),
        ("Qwen/Qwen3-4B", 80, {"use_vllm": True, "tasks_per_round": 8, "vllm_gpu_memory_utilization": 0.3}),
        ("llama-3.2-3b", 24, {"use_vllm": True, "tasks_per_round": 8}),
        ("qwen2.5-7b", 24, {"use_vllm": False}),
        ("qwen2.5-7b", 80, {"use_vllm": True, "tokens_per_forward": 16384}),
        ("qwen2.5-14b", 24, {"use_vllm": False, "load_in_4bit": True}),
        ("gemma-2-2b", 24, {"use_vllm": True, "rectify": False}),
        ("a-mixture", 24, {"use_vllm": True, "router_aux_loss_coef": 0.0}),
    ],
)
def test_rounds_are_of_a_size_that_fits(name: str, gpu: int, expected: dict[str, Any], tmp_path: Path) -> None:
    found = fit(HubModel(name if "/" in name else _described(tmp_path, name)), gpu)
    assert found.settings.items() >= expected.items()
    assert not found.planned.problem and found.planned.most < 0.91 * gpu
    assert ("load_in_4bit" in found.settings) is ("load_in_4bit" in expected)


def test_lengths_follow_from_thinking_and_positions(tmp_path: Path) -> None:
    assert HubModel("Qwen/Qwen3-4B").lengths() == {"max_prompt_length": 2048, "max_completion_length": 2048}
    assert HubModel("Qwen/Qwen2.5-3B-Instruct").lengths()["max_completion_length"] == 512
    short = HubModel(_described(tmp_path, "short"))
    assert short.lengths() == {"max_prompt_length": 512, "max_completion_length": 512}


@pytest.mark.full
def test_what_does_not_fit_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not fit on a GPU of 8 GiB: with LoRA it takes .* GiB at least"):
        fit(HubModel(_described(tmp_path, "qwen2.5-14b")), 8)


def test_the_plan_of_a_written_recipe_fits_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], forgotten: None
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "maze", "--model", _described(tmp_path, "llama-3.2-3b"), "--gpu_gib", "24"])
    said = capsys.readouterr().out
    assert "3.2 billion parameters, does not think" in said and "python train.py --plan --gpu_gib 24" in said
    monkeypatch.chdir(tmp_path / "maze")
    text = Path("train.py").read_text()
    assert (
        "LoRA Without Regret" in text and "does not think" in text and "MODEL_" not in text and "# SETTINGS" not in text
    )
    assert "ShortPrompt" not in Path("maze.py").read_text()  # nobody taught it the form
    preset = runpy.run_path("train.py")["PRESET"]
    assert preset["learning_rate"] == 1e-5 and preset["distribution_rounds"] == preset["rounds"] // 2
    assert preset["dtype"] == "bfloat16" and preset["gradient_checkpointing"] and preset["vllm_enable_sleep_mode"]
    monkeypatch.setattr("sys.argv", ["train.py", "--plan", "--gpu_gib", "24"])
    runpy.run_path("train.py", run_name="__main__")
    said = capsys.readouterr().out
    assert "32.0" not in said and "DOES NOT FIT" not in said and "NOTE" not in said and "full-length responses" in said
    monkeypatch.setattr("sys.argv", ["train.py", "--plan", "--panel", "tset"])
    with pytest.raises(SystemExit):
        runpy.run_path("train.py", run_name="__main__")
    assert "panel='tset': there is no 'tset'" in capsys.readouterr().err


def test_a_small_model_is_for_two_cores_unless_a_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    place = _described(tmp_path, "short")
    changes, told = recipe_changes(place, None)
    assert changes["ONE_GPU"] == "SMOLLM2" and told.endswith("on two cores")
    assert '"max_prompt_length": 976' in changes["    # SETTINGS"]  # of 1024 positions, beside 48 of a response
    assert "ONE_GPU" not in recipe_changes(place, 24)[0]


def test_a_model_that_cannot_be_read_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fails(["new", "maze", "--model", "nobody/nothing"], "hf download nobody/nothing", capsys=capsys)
    fails(["new", "maze", "--model", "./nothing"], "./nothing", "no folder", capsys=capsys)
    fails(["new", "maze", "--model", "tiny", "--gpu_gib", "24"], "two cores", capsys=capsys)
    assert not (tmp_path / "maze").exists()


@pytest.mark.full
def test_the_adapter_of_a_model_that_sees_is_for_the_layers_that_read_text(tmp_path: Path) -> None:
    model = HubModel(_described(tmp_path, "sees"))
    (pattern,) = fit(model, 24).settings["lora_target_modules"]
    adapted = get_peft_model(model.empty, LoraConfig(target_modules=pattern))
    trained = [name for name, one in adapted.named_parameters() if one.requires_grad]
    assert len(trained) == 2 * 2 * 7 and all(".language_model." in name for name in trained)
    assert "lora_target_modules" not in fit(HubModel(_described(tmp_path, "short")), 24).settings
