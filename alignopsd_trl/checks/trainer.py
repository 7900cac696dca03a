"""Checks of a trainer's rewards and tokenizer; `alignopsd_trl.checks` has those that need no trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.methods import Method
from alignopsd_trl.scoring.trl_model import why_not_shared

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer

logger = logging.getLogger(__name__)


def weights_of_rewards(given: Sequence[float] | None, functions: Sequence[Callable]) -> list[float] | None:
    """Returns the weights of the environment's own reward (1 by default) and of the user's functions.

    Raises:
        ValueError: if there are too many or too few.
    """
    if given is None or len(given) == len(functions) + 1:
        return None if given is None else list(given)
    if len(given) == len(functions):
        return [1.0, *given]
    raise ValueError(
        f"reward_weights has {len(given)} entries for {len(functions)} reward_funcs; give one each "
        "(the environment's own reward has weight 1), or one more in front for the environment's"
    )


def check_tokenizer(tokenizer: Any) -> None:
    """Raises `ValueError` for a processing class that can't make prompts or end turns."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError("processing_class must be a tokenizer: prompts are text")
    if tokenizer.eos_token_id is None:
        raise ValueError("processing_class has no eos_token, which ends a turn; set tokenizer.eos_token")


def shares_prefixes(trainer: Trainer, method: Method) -> bool:
    """Returns whether responses scored under one prompt share its encoding; warns where the model can't."""
    reason = why_not_shared(trainer)
    if reason and trainer.args.share_prefixes and method.needs_teacher and trainer.accelerator.is_main_process:
        logger.warning(f"share_prefixes=True scores each pair of prompt and response alone with this model: {reason}")
    return trainer.args.share_prefixes and reason is None
