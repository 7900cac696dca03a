"""TRL's loss over turn rows, in sub-chunks whose memory does not grow with the number of turns."""

from __future__ import annotations

from collections.abc import Callable

import torch

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Method
from alignopsd_trl.policy.process_group import ProcessGroup
from alignopsd_trl.policy.turn_rows import TARGET, VOCABULARY, live_rows, sub_chunks

Rows = dict[str, torch.Tensor]


def chunks_of(rows: Rows, config: AlignOPSDConfig, processes: ProcessGroup) -> list[Rows]:
    """Cuts a micro-batch into sub-chunks of ``tokens_per_forward``, without the rows that add exactly nothing."""
    every = torch.ones(len(rows["advantages"]), dtype=torch.bool)
    live = live_rows(rows) if only_live_rows_count(rows, config) else every
    return sub_chunks(rows, live, config.rows_per_forward, config.tokens_per_forward, processes.agree)


def only_live_rows_count(rows: Rows, config: AlignOPSDConfig) -> bool:
    """Whether a row without advantage adds exactly nothing to loss and gradient."""
    targets = any(name.startswith(TARGET) for name in rows)
    return config.skip_zero_advantage and config.beta == 0.0 and config.entropy_coef == 0.0 and not targets


def auxiliary_sum(
    method: Method,
    coefficient: float,
    entropy_coef: float,
    rows: Rows,
    log_probs: torch.Tensor,
    entropies: torch.Tensor,
    logits: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor | float:
    """The method's auxiliary loss and the entropy bonus, summed over the optimised tokens; 0 where there is neither.

    Args:
        coefficient: of the auxiliary loss.
        log_probs, entropies: ``(rows, L)`` of TRL's own forward, with gradient.
        logits: gives the live logits of tokens ``(rows, L, K)``.
    """
    targets = {name.removeprefix(TARGET): value for name, value in rows.items() if name.startswith(TARGET)}
    if not targets and entropy_coef == 0.0:
        return 0.0
    mask = rows["completion_mask"] * rows["tool_mask"]
    log_probs = log_probs.masked_fill(mask == 0, 0.0)  # a difference from a target of 0 must stay finite
    per_token = -entropy_coef * entropies
    if VOCABULARY in targets:
        targets["vocabulary"] = logits(targets[VOCABULARY])
    if targets:
        old = rows.get("old_per_token_logps", log_probs.detach())
        per_token = per_token + coefficient * method.auxiliary(targets, log_probs, old)
    return (per_token * mask).sum()
