"""TRL's loss over turn rows, in sub-chunks whose memory does not grow with the number of turns."""

from __future__ import annotations

from typing import Any

import torch
from trl import GRPOTrainer

from alignopsd_trl import trl_compat
from alignopsd_trl.policy import strategies
from alignopsd_trl.policy.turn_rows import (
    TARGET,
    VOCABULARY,
    live_rows,
    sub_chunks,
)


class ChunkedUpdate(GRPOTrainer):
    """A trainer whose update walks a micro-batch in sub-chunks and adds the method's own terms on
    TRL's live log-probs."""

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """TRL's loss over sub-chunks of ``tokens_per_forward``: memory does not grow with the number of turns."""
        if return_outputs:
            raise ValueError("AlignOPSDTrainer does not return outputs")
        *earlier, last = chunks = self._sub_chunks(inputs)
        most = self.processes.agree(max(len(chunk["advantages"]) for chunk in chunks))
        done: torch.Tensor | float = 0.0
        with trl_compat.filled_up(self, most):
            for chunk in earlier:
                with strategies.unsynchronised(self.accelerator, model):
                    loss = self._chunk_loss(model, chunk)
                    strategies.backward(self.accelerator, loss)
                done = done + loss.detach()
            return self._chunk_loss(model, last) + done

    def _sub_chunks(self, inputs: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        every = torch.ones(len(inputs["advantages"]), dtype=torch.bool)
        live = live_rows(inputs) if self._needs_live_rows_only(inputs) else every
        return sub_chunks(inputs, live, self.args.rows_per_forward, self.args.tokens_per_forward, self.processes.agree)

    def _needs_live_rows_only(self, inputs: dict[str, torch.Tensor]) -> bool:
        """Whether a row without advantage adds exactly nothing to loss and gradient."""
        targets = any(name.startswith(TARGET) for name in inputs)
        return self.args.skip_zero_advantage and self.beta == 0.0 and self.entropy_coef == 0.0 and not targets

    def _chunk_loss(self, model: Any, chunk: dict[str, torch.Tensor]) -> torch.Tensor:
        self._read = chunk["completion_mask"] * chunk["tool_mask"]
        try:
            loss = trl_compat.policy_loss(self, model, chunk)
        finally:
            self._read = None
        return loss + self._extra_loss(model, chunk)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Keeps the live log-probs of TRL's own forward for `_extra_loss`. In the update they are 0 where the loss does
        not read them."""
        with trl_compat.head_on_labels(self.accelerator.device):
            output = super()._get_per_token_logps_and_entropies(
                trl_compat.labelled_where(model, self._read), *args, **kwargs
            )
        self._live = output if torch.is_grad_enabled() else None
        return output

    def _extra_loss(self, model: Any, chunk: dict[str, torch.Tensor]) -> torch.Tensor | float:
        """The method's auxiliary loss and the entropy bonus, as means over the same global tokens as TRL's loss."""
        targets = {name.removeprefix(TARGET): value for name, value in chunk.items() if name.startswith(TARGET)}
        if not targets and self.entropy_coef == 0.0:
            return 0.0
        log_probs, entropies, _ = self._live
        mask = chunk["completion_mask"] * chunk["tool_mask"]
        log_probs = log_probs.masked_fill(mask == 0, 0.0)  # a difference from a target of 0 must stay finite
        per_token = -self.entropy_coef * entropies
        if VOCABULARY in targets:
            targets["vocabulary"] = trl_compat.live_logits(self, model, chunk, targets[VOCABULARY])
        if targets:
            old = chunk.get("old_per_token_logps", log_probs.detach())
            coefficient = self.method.coefficients(self._round).auxiliary
            per_token = per_token + coefficient * self.method.auxiliary(targets, log_probs, old)
        return (per_token * mask).sum() / trl_compat.token_normalizer(self, chunk)
