"""What the rewards and the model of a trainer are held to; `alignopsd_trl.checks` has what can be said earlier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.methods import Method


def weights_of_rewards(given: Sequence[float] | None, functions: Sequence[Callable]) -> list[float] | None:
    """The weights of the environment's own reward, which is 1 by default, and of the user's functions.

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


def check_own_loop(samples_plainly: bool) -> None:
    """Raises `ValueError` where this process can't sample by itself.

    Args:
        samples_plainly: whether the model is whole on each process, proven, and sampled from without restriction.
    """
    if not samples_plainly:
        raise ValueError(
            "continuous_play=True without vLLM needs a proven model that is whole on each process (no FSDP or ZeRO) "
            "and samples from its whole distribution (no top_k, top_p, min_p, penalty or generation_kwargs); set "
            "continuous_play=False or use_vllm=True"
        )


def check_mixing(method: Method, after_head: str | None) -> None:
    """Raises `ValueError` for a method that mixes distributions of a model whose head does not make its logits.

    Args:
        after_head: what the model does to them afterwards; `None` for nothing.
    """
    if after_head and method.kept_logits and getattr(method, "needs_matches", False):
        raise ValueError(
            "auxiliary_loss='distribution' mixes views where the head makes logits, which this model changes "
            f"afterwards ({after_head}); use rectify=False"
        )


def check_model(tokenizer: Any, balances_experts: bool, unmerged: str | None) -> None:
    """Raises `ValueError` for a model that turn rows can't be trained with.

    Args:
        balances_experts: whether the loss has a load-balancing term.
        unmerged: why the turns of a dialogue can't share a row; `None` if they can or need not.
    """
    if balances_experts:
        raise ValueError(
            "a mixture-of-experts load-balancing loss is a mean per micro-batch, which sub-chunks would change; "
            "set router_aux_loss_coef=0.0"
        )
    if unmerged:
        raise ValueError(f"merge_rows=True would change what this model computes: {unmerged}; set merge_rows=False")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError("processing_class must be a tokenizer: prompts are text")
    if tokenizer.eos_token_id is None:
        raise ValueError("processing_class has no eos_token, which ends a turn; set tokenizer.eos_token")
