"""Checks of a trainer's rewards and tokenizer; `alignopsd_trl.checks` has those that need no trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from accelerate.utils import is_peft_model
from transformers import PreTrainedTokenizerBase

from alignopsd_trl.checks.compatibility import check_rewarded, is_adapted
from alignopsd_trl.checks.loading import beyond_positions, check_architecture
from alignopsd_trl.checks.quantised import check_quantised
from alignopsd_trl.checks.settings import changes_nothing
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Method
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.reading import require_tools
from alignopsd_trl.rollout.trial import check_template, notes_of
from alignopsd_trl.runs.health import weights_are_finite
from alignopsd_trl.scoring.trl_trainer import why_not_shared

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer

logger = logging.getLogger(__name__)


def checked_rewards(factory: Any, given: Callable | list[Callable] | None, args: AlignOPSDConfig) -> list[Callable]:
    """Returns the user's reward functions as a list, and settles their weights in ``args``."""
    functions = [] if given is None else given if isinstance(given, list) else [given]
    check_rewarded(factory, functions)
    args.reward_weights = weights_of_rewards(args.reward_weights, functions)
    return functions


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


def check_made(trainer: Any, processes: ProcessGroup) -> list[str]:
    """Checks what a trainer has loaded, and returns notes about it.

    Args:
        trainer: after TRL's part of its construction, with its method and factory.

    Raises:
        ValueError: if the policy, its weights or its tokenizer can't be trained with these settings.
    """
    args, tokenizer, policy = trainer.args, trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    check_tokenizer(tokenizer)
    check_architecture(policy, args, trainer.method)
    check_quantised(getattr(policy.config, "quantization_config", None), args, is_peft_model(policy))
    if processes.agree(int(not weights_are_finite(trainer.model))):
        name = policy.config._name_or_path
        raise ValueError(f"the weights of model={name!r} are not finite; copy it again, or take an earlier one")
    native = is_adapted(trainer.environment_factory) and trainer.environment_factory.prompt.native
    if native:
        require_tools(tokenizer)
    options = PlayOptions.of(args)
    check_template(tokenizer, options, native)
    positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
    told = (
        beyond_positions(positions, args),
        changes_nothing(args),
        *notes_of(tokenizer, options, trainer.eos_token_ids),
    )
    return list(filter(None, told))


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
