"""What a trainer's policy is: its configuration, attention, precision, and whether its prompts can be shared."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from trl.models.utils import disable_gradient_checkpointing

from alignopsd_trl.scoring.packing import why_plain

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer


def policy_of(trainer: Trainer) -> Any:
    """Returns the model without its wrappers for several processes."""
    return trainer.accelerator.unwrap_model(trainer.model)


def text_config(trainer: Trainer) -> Any:
    return policy_of(trainer).config.get_text_config()


def attention_of(trainer: Trainer) -> str:
    return text_config(trainer)._attn_implementation


def computes_in(trainer: Trainer) -> torch.dtype:
    """Returns the precision of the policy's attention: autocast's, where it is on."""
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = policy_of(trainer).dtype
    return autocast.get(trainer.accelerator.mixed_precision, dtype) if dtype == torch.float32 else dtype


def why_not_shared(trainer: Trainer) -> str | None:
    """Returns the reason why prompts can't be shared in scoring with this model, or ``None`` if they can."""
    if getattr(getattr(policy_of(trainer), "active_peft_config", None), "is_prompt_learning", False):
        return "its adapter puts virtual tokens before the row"
    return why_plain(text_config(trainer), attention_of(trainer))


def without_checkpointing(trainer: Trainer) -> AbstractContextManager[None]:
    kwargs: Any = trainer.args.gradient_checkpointing_kwargs or None  # a mapping, which transformers has parsed
    return disable_gradient_checkpointing(trainer.model, kwargs)
