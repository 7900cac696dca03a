"""Fails loudly, by name, when a private place of TRL that we build on has moved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import metadata

import pytest
from packaging.version import Version
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import add_fused_lm_head, use_adapter

SEAMS = {
    "_generate_single_turn": ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_prepare_inputs": ["self", "generation_batch"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_get_per_token_logps_and_entropies": ["self", "model", "input_ids", "attention_mask", "logits_to_keep"],
    "_compute_loss": ["self", "model", "inputs"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "prediction_step": ["self", "model", "inputs", "prediction_loss_only", "ignore_keys"],
    "_run_epoch": ["self", "model", "epoch"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_get_train_sampler": ["self", "dataset"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_save_rng_state": ["self", "output_dir"],
    "save_model": ["self", "output_dir", "_internal_call"],
    "create_model_card": ["self", "model_name", "dataset_name", "tags"],
}


def test_trl_is_of_the_pinned_series() -> None:
    assert Version("1.16") <= Version(metadata.version("trl")) < Version("1.17")


@pytest.mark.parametrize("name", SEAMS)
def test_method_is_where_we_left_it(name: str) -> None:
    found = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert found[: len(SEAMS[name])] == SEAMS[name], f"GRPOTrainer.{name} has moved: {found}"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("_compute_loss", ["tool_mask", "old_per_token_logps", "num_items_in_batch", "importance_sampling_ratio"]),
        ("_compute_loss", ["ref_per_token_logps", "steps_per_generation", "current_gradient_accumulation_steps"]),
        ("_compute_loss", ["gathered_low_clip = self.accelerator.gather(", "nanmin(gathered_low_clip)"]),
        ("_prepare_inputs", ["steps_per_generation", "num_iterations", "_buffered_inputs"]),
        ("_generate_single_turn", ["_last_loaded_step", "vllm_generation", "generation_config"]),
        ("_run_epoch", ["epoch == epochs_trained", "_get_grad_norm", "self.optimizer.step()", "_load_rng_state"]),
        ("_save_checkpoint", ["_save_rng_state", "save_to_json", "PREFIX_CHECKPOINT_DIR"]),
        ("log", ["_metrics", '_logs["prompt"]', '_logs["advantages"]', '_logs["rewards"]']),
        ("__init__", ["eos_token_ids", "reward_func_names", "reward_weights", "aux_loss_enabled", "_is_vlm"]),
        ("__init__", ["prepare_fsdp(self.ref_model, self.accelerator)"]),
        ("__init__", ["_entropy_bonus_enabled", "mask_truncated_completions", "chat_template_kwargs"]),
    ],
)
def test_names_that_we_read_or_write_are_still_used(method: str, words: list[str]) -> None:
    written = [vars(owner)[method] for owner in GRPOTrainer.__mro__ if inspect.isfunction(vars(owner).get(method))]
    source = "".join(map(inspect.getsource, written))
    missing = [word for word in words if word not in source]
    assert not missing, f"GRPOTrainer.{method} no longer mentions {missing}"


def test_helpers_are_where_we_left_them() -> None:
    assert "temperature" in inspect.signature(add_fused_lm_head).parameters
    assert "adapter_name" in inspect.signature(use_adapter).parameters
    fused = inspect.getsource(add_fused_lm_head)
    assert "compact = _use_triton(" in fused and fused.count("_use_triton") == 1, "the fused head chooses otherwise"
    assert "shift_labels" in fused, "the fused head no longer takes shifted labels"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (VLLMGeneration._init_vllm, ["LLM(", "max_num_seqs=", "max_num_batched_tokens=", "max_model_len="]),
        (VLLMGeneration.generate, ["enable_sleep_mode", "_llm_weights_sleeping", "llm.sleep(level=2)"]),
        (VLLMGeneration.sync_weights, ["enable_sleep_mode", "load_weights", "reset_prefix_cache"]),
    ],
)
def test_sampler_is_where_we_left_it(where: Callable, words: list[str]) -> None:
    missing = [word for word in words if word not in inspect.getsource(where)]
    assert not missing, f"{where.__qualname__} no longer mentions {missing}"
