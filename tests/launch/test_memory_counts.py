"""The plan's estimate of an update against bytes that are counted."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from fake_memory import update_peak
from fakes.sweeps import mostly_full
from transformers import AutoConfig
from trl import ModelConfig

from alignopsd_trl.commands.launch.arguments import RecipeArguments
from alignopsd_trl.commands.launch.machine import Launch
from alignopsd_trl.commands.launch.memory import GIB, estimate, loading, published, shape_of
from alignopsd_trl.commands.launch.memory_plan import memory_facts
from alignopsd_trl.commands.launch.presets import BACKBONES
from alignopsd_trl.config import AlignOPSDConfig

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", BACKBONES)
def test_shapes_of_the_table_are_those_of_their_configs(name: str) -> None:
    found, known = shape_of(BACKBONES[name].hub_id, published(BACKBONES[name])), BACKBONES[name]
    assert found.parameters == known.parameters
    assert (found.kv_width, found.intermediate) == (known.kv_width, known.intermediate)


SHOWN = [("7b", 0), ("qwen3-4b", 16)]  # all weights, an adapter
OTHERS = [
    pytest.param(*one, marks=pytest.mark.slow)
    for one in (*((name, 0) for name in BACKBONES), ("7b", 16))
    if one not in SHOWN
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "rank"), [*SHOWN, *OTHERS])
def test_estimate_is_within_a_tenth_of_what_is_counted(name: str, rank: int, tmp_path: Path) -> None:
    args = AlignOPSDConfig(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=8, max_prompt_length=4096, gradient_checkpointing=True
    )
    config = published(BACKBONES[name])
    model = ModelConfig(use_peft=rank > 0, lora_r=rank or 1, dtype="bfloat16" if rank else "float32")
    found = estimate(BACKBONES[name], args, Launch(), loading(config, model, args, Launch()), gpu_gib=141).training
    parts = sum(found.get(part, 0.0) for part in ("weights", "gradients", "optimizer", "compute copy", "activations"))
    assert parts == pytest.approx(update_peak(config, 3, 4608, rank) / GIB, rel=0.1)


@pytest.mark.full
def test_the_table_of_the_page_is_what_the_plan_says() -> None:
    found = runpy.run_path(str(ROOT / "benchmarks" / "one_gpu.py"))["table"]()
    assert found in (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")


VLLM: dict[str, Any] = {"use_vllm": True, "vllm_mode": "colocate"}
SLEEP = {**VLLM, "vllm_enable_sleep_mode": True}
LORA: dict[str, Any] = {"use_peft": True, "dtype": "bfloat16"}
WIDE = {**LORA, "lora_r": 256}  # 28 x 256 x (3584 + 3584 + 3584 + 512) parameters at 7B: 0.3008 GiB of float32
TWO = ["q_proj", "v_proj"]
QLORA = {**WIDE, "load_in_4bit": True}
MIXTURE = {  # Qwen3-30B-A3B: 30,532,122,624 parameters, of which 905,969,664 in linear layers
    **{"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4},
    **{"head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128},
    **{"num_experts_per_tok": 8, "vocab_size": 151_936, "tie_word_embeddings": False},
}
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixture": ("qwen3_moe", MIXTURE),
    "sliding": ("mistral", {}),  # 7,241,732,096 parameters; each of 32 layers keeps 2 x 8 x 128 numbers of 4,096 tokens
    "half sliding": (
        "gpt_oss",
        {"num_hidden_layers": 4},
    ),  # layers keep 2 x 8 x 64 numbers: two of 128 tokens, two of all
    "quantised": ("qwen2", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    "recurrent": ("qwen3_next", {"num_hidden_layers": 4, "num_experts": 4}),
}


def _facts(folder: Path, name: str, gpu: float, model: dict, options: dict, launch: Launch = Launch()) -> dict:  # noqa: B008
    if name in FOLDERS:
        kind, given = FOLDERS[name]
        AutoConfig.for_model(kind, **given).save_pretrained(folder)
    args = AlignOPSDConfig(
        str(folder), **{"use_cpu": True, "per_device_train_batch_size": 8, "max_prompt_length": 4096, **options}
    )
    args.use_cpu = False
    chosen = ModelConfig(str(folder) if name in FOLDERS else BACKBONES[name].hub_id, **{"dtype": "float32", **model})
    return memory_facts(RecipeArguments(gpu_gib=gpu), args, chosen, launch, rows=0)


@pytest.mark.parametrize(
    ("gpu", "model", "advised"),
    [
        (80, {"dtype": "bfloat16"}, True),
        (32, {"dtype": "bfloat16"}, False),  # for both weights, and for no keys and values beside them
        (24, {"dtype": "bfloat16"}, False),
        (80, QLORA, False),
    ],
)
def test_vllm_is_advised_where_it_has_room(gpu: float, model: dict, advised: bool, tmp_path: Path) -> None:
    said = _facts(tmp_path, "7b", gpu, {"use_peft": True, **model}, {"use_vllm": False})["sampler"]
    assert ("take --use_vllm" in said) is advised and "waits for small kernels" in said


@pytest.mark.parametrize(
    ("name", "model", "options", "says"),
    mostly_full(
        [  # GiB by hand: parameters times bytes over 2**30
            ("0.5b", {}, {"beta": 0.1}, "weights 1.8, gradients 1.8, optimizer 3.7, reference 1.8, activations"),
            ("7b", {}, {"beta": 0.1}, "weights 28.4, gradients 28.4, optimizer 56.7, reference 28.4, activations"),
            ("7b", {}, {"teacher_model_kind": "base"}, "optimizer 56.7, teacher 28.4, activations"),
            ("7b", {}, {"teacher_model_kind": "base", "beta": 0.1}, "optimizer 56.7, reference 28.4, activations"),
            ("7b", {}, {"teacher_model_kind": "base", "method": "grpo"}, "optimizer 56.7, activations"),
            (
                "3b",
                {"dtype": "bfloat16"},
                {"beta": 0.1},
                "weights 5.7, gradients 5.7, optimizer 11.5, reference 5.7, act",
            ),
            ("qwen3-4b", {}, {}, "weights 15.0, gradients 15.0, optimizer 30.0, activations"),
            ("7b", LORA, {"beta": 0.1}, "weights 14.2, activations"),
            ("7b", WIDE, {"beta": 0.1}, "weights 14.5, gradients 0.3, optimizer 0.6, activations"),
            ("7b", WIDE, {"teacher_model_kind": "base"}, "optimizer 0.6, teacher 0.3, activations"),
            ("7b", QLORA, {"use_vllm": False}, "weights 5.8, gradients 0.3, optimizer 0.6, activations"),
            (
                "7b",
                {**QLORA, "use_bnb_nested_quant": True},
                {"use_vllm": False},
                "weights 5.5, gradients 0.3, optimizer 0.6, activations",
            ),
            ("mixture", {"dtype": "bfloat16"}, {}, "weights 56.9, gradients 56.9, optimizer 113.7, activations"),
            (
                "mixture",
                {**LORA, "load_in_4bit": True, "lora_target_modules": ["q_proj", "v_proj"]},
                {"use_vllm": False},
                "weights 55.7, activations",
            ),
        ]
    ),
)
def test_weights_are_counted_as_by_hand(name: str, model: dict, options: dict, says: str, tmp_path: Path) -> None:
    options = {**VLLM, "beta": 0.0, "vllm_gpu_memory_utilization": 0.9, **options}
    assert says in _facts(tmp_path, name, 200, model, options)["memory per GPU, estimate"]


@pytest.mark.parametrize(
    ("name", "model", "tokens", "weights", "row"),
    mostly_full(
        [  # GiB of the engine's weights, and of the keys and values of one full-length row, by hand
            ("7b", {}, 4608, 14.185, 2 * 4 * 128 * 28 * 4608 * 2),
            ("7b", LORA, 4608, 14.185 + 0.0094, 2 * 4 * 128 * 28 * 4608 * 2),
            ("qwen3-4b", {}, 4608, 7.492, 2 * 8 * 128 * 36 * 4608 * 2),
            ("mixture", {}, 8704, 56.871, 2 * 4 * 128 * 48 * 8704 * 2),
            ("sliding", {}, 8704, 13.489, 2 * 8 * 128 * 32 * 4096 * 2),
            ("half sliding", {}, 8704, None, 2 * 8 * 64 * (2 * 128 + 2 * 8704) * 2),
        ]
    ),
)
def test_engine_holds_its_weights_and_rows_as_by_hand(
    name: str, model: dict, tokens: int, weights: float | None, row: int, tmp_path: Path
) -> None:
    options = {**VLLM, "vllm_gpu_memory_utilization": 0.9, "max_prompt_length": tokens - 512}
    found = _facts(tmp_path, name, 100, model, {**options, "max_completion_length": 512})["sampler"]
    held = float(found.partition("weights ")[2].partition(",")[0])
    cache = float(found.partition("cache ")[2].partition(":")[0])
    rows = int(found.partition(": ")[2].partition(" full")[0])
    assert weights is None or held == pytest.approx(weights, abs=0.06)
    assert rows == pytest.approx(cache * GIB / row, abs=0.06 * GIB / row + 1)


@pytest.mark.parametrize(
    ("name", "gpu", "model", "options", "fails"),
    mostly_full(
        [
            # 14.2 beside an engine of 0.7 x 24 = 16.8
            (
                "7b",
                24,
                LORA,
                {**SLEEP, "vllm_gpu_memory_utilization": 0.7},
                "31.0 GiB while vLLM samples, on a GPU of 24",
            ),
            ("7b", 48, LORA, {**SLEEP, "vllm_gpu_memory_utilization": 0.4}, None),
            # 14.2 + 19.2 in sampling; update and scoring come on top of that where the engine does not sleep
            ("7b", 36, LORA, {**SLEEP, "vllm_gpu_memory_utilization": 0.5}, None),
            ("7b", 36, LORA, {**VLLM, "vllm_gpu_memory_utilization": 0.5}, "in training, on a GPU of 36"),
            # weights and optimiser, 4 + 8 bytes a parameter: 34.5 beside 24; then gradients, copy, activations
            ("3b", 80, {}, {**SLEEP, "beta": 0.0}, None),
            ("3b", 80, {}, {**SLEEP, "beta": 0.0, "vllm_gpu_memory_utilization": 0.6}, "82.5 GiB while vLLM samples"),
        ]
    ),
)
def test_awake_engine_stands_beside_what_training_keeps(
    name: str, gpu: float, model: dict, options: dict, fails: str | None, tmp_path: Path
) -> None:
    small = {"tokens_per_forward": 4608}
    found = _facts(tmp_path, name, gpu, model, {**small, **options}).get("DOES NOT FIT")
    assert found is None if fails is None else fails in found


@pytest.mark.parametrize(
    ("name", "model", "options", "launch", "says"),
    mostly_full(
        [
            ("7b", {"load_in_4bit": True}, {}, Launch(), "--use_peft"),
            ("7b", QLORA, {}, Launch(8, 1, "FSDP2"), "on one process, not on 8"),
            ("7b", QLORA, {}, Launch(2, 1, "DDP"), "on one process, not on 2"),
            ("7b", QLORA, VLLM, Launch(), "use_vllm=False"),
            ("7b", {**LORA, "load_in_8bit": True}, {}, Launch(), "use load_in_4bit=True"),
            ("mixture", LORA, {}, Launch(), "--lora_target_modules q_proj v_proj"),
            ("quantised", {}, {}, Launch(), "name the model that they were made from"),
        ]
    ),
)
def test_weights_that_can_not_be_counted_are_refused(
    name: str, model: dict, options: dict, launch: Launch, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        _facts(tmp_path, name, 80, model, options, launch)


def test_recurrent_states_are_said_not_to_be_counted(tmp_path: Path) -> None:
    assert "linear_attention" in _facts(tmp_path, "recurrent", 80, {}, VLLM)["not counted"]
