"""TRL's trainer as the files `trl_*.py` see it: its type, what ours overrides, the private names
that they touch, and what its policy is.

These files alone touch private names of TRL, transformers and Accelerate. Pinned to ``trl>=1.16,<1.17``;
`tests/repository/test_trl_compat.py` fails with the name that a new version of TRL changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from trl.models.utils import disable_gradient_checkpointing

from alignopsd_trl.scoring.packing import attention_of, why_plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import GRPOTrainer

    from alignopsd_trl.config import AlignOPSDConfig

    class Trainer(GRPOTrainer):
        """TRL's trainer with narrower types, since TRL's own trains more than language models."""

        args: AlignOPSDConfig
        model: PreTrainedModel
        ref_model: PreTrainedModel | None
        processing_class: PreTrainedTokenizerBase
        max_completion_length: int
        vllm_generation: Any
        reward_funcs: list[Callable[..., Any]]
        hub_model_id: str | None


OVERRIDES = {
    "_generate_and_score_completions": "a round is episodes of many turns, with credit a turn",
    "compute_loss": "sub-chunks, and what methods add to the loss",
    "training_step": "seconds, gradients in shards, a loss that is not finite",
    "evaluation_loop": "an evaluation plays episodes, all of them in one play",
    "train": "an output folder is one run's; resuming is exact",
    "save_model": "whole files of finite weights, without the token",
    "push_to_hub": "one commit of what a card is about, and nothing else of the folder",
    "_push_from_checkpoint": "as above, and a push that fails does not end the run",
    "create_model_card": "a card of our own",
    "_get_train_sampler": "an order of tasks that knows its epoch",
    "_run_epoch": "tells it; a run that has ended trains nothing when it is resumed",
    "_save_checkpoint": "what is ours goes into it first, the mark of a whole one comes last",
    "_issue_warnings_after_load": "tied weights are not missing",
    "_save_rng_state": "all processes' files are there before that mark",
}
"""Methods of TRL's trainer and its base classes that `trainer.AlignOPSDTrainer` overrides, with reasons."""

PRIVATE = {
    "GRPOTrainer._get_per_token_logps_and_entropies": "scoring by TRL's own forward",
    "GRPOTrainer._generate_single_turn": "sampling through vLLM or transformers' generate",
    "GRPOTrainer._save_checkpoint": "a checkpoint before a run has to end",
    "GRPOTrainer._calculate_rewards": "reward functions in all of TRL's forms",
    "GRPOTrainer._compute_loss": "TRL's losses",
    "GRPOTrainer._metrics": "numbers of the next line of the log",
    "GRPOTrainer._logs": "the table of completions",
    "GRPOTrainer._last_loaded_step": "makes the next generation push the weights",
    "VLLMGeneration._llm_weights_sleeping": "an engine that wakes once a round",
    "VLLMGeneration._init_vllm": "an engine with adapters, where the policy is one",
    "lora_manager._adapter_manager": "vLLM's own: its layers that add an adapter, around those that take base weights",
    "VLLMGeneration._iter_named_params": "a server that does not take the weights ends the run on all processes",
    "generate._is_fsdp_managed_module": "generation that goes on until all processes have finished",
    "deepspeed._hf_deepspeed_config_weak_ref": "models beside the policy are loaded whole",
    "utils._use_triton": "patched: the vocabulary head takes labelled positions alone, on CPU too",
}
"""Private names that these files read, call or patch, with reasons. Public names that they patch for a while are
`vllm_generation.LLM`, `grpo_trainer.VLLMGeneration`, `grpo_trainer.prepare_fsdp` and `Accelerator.gather`."""


def policy_of(trainer: Trainer) -> Any:
    """Returns the model without its wrappers for several processes."""
    return trainer.accelerator.unwrap_model(trainer.model)


def computes_in(trainer: Trainer) -> torch.dtype:
    """Returns the precision of the policy's attention: autocast's, where it is on."""
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = policy_of(trainer).dtype
    return autocast.get(trainer.accelerator.mixed_precision, dtype) if dtype == torch.float32 else dtype


def why_not_shared(trainer: Trainer) -> str | None:
    """Returns the reason why prompts can't be shared in scoring with this model, or ``None`` if they can."""
    policy = policy_of(trainer)
    if getattr(getattr(policy, "active_peft_config", None), "is_prompt_learning", False):
        return "its adapter puts virtual tokens before the row"
    return why_plain(policy.config.get_text_config(), attention_of(policy))


def without_checkpointing(trainer: Trainer) -> AbstractContextManager[None]:
    kwargs: Any = trainer.args.gradient_checkpointing_kwargs or None  # a mapping, which transformers has parsed
    return disable_gradient_checkpointing(trainer.model, kwargs)
