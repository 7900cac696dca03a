"""Computes TRL's loss over turn rows, in sub-chunks whose memory does not grow with the number of turns, and
measures how far the optimiser steps of a round move the policy from the one that sampled it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import TrainerCallback

from alignopsd_trl.common import strategies
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Method
from alignopsd_trl.training.recorder import Recorder
from alignopsd_trl.training.turn_rows import TARGET, TAUGHT, VOCABULARY, live_rows, sub_chunks

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import PolicyLoss, Rows, TrainedPolicy


@dataclass(eq=False)
class Update(TrainerCallback):
    """The loss of an update: TRL's loss, the method's auxiliary loss and the entropy bonus. A step whose rows add
    nothing to the gradient leaves the weights as they are; the optimiser's momentum would move them on. With
    ``scale_steps`` a step is as long as the share of its tokens that add to it. DeepSpeed's engine steps by itself.

    Attributes:
        taught: tokens of this step's rows that add to the gradient, and all its tokens, on this process.
        share: of this step's tokens, on all processes, that add to the gradient.
    """

    policy: TrainedPolicy
    accelerator: Accelerator
    config: AlignOPSDConfig
    method: Method
    processes: ProcessGroup
    drift: Drift
    taught: torch.Tensor | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.config.scale_steps and self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            raise ValueError(
                "scale_steps=True would change nothing under DeepSpeed, whose engine steps by itself; set it to False, "
                "or use DDP or FSDP2"
            )

    def on_pre_optimizer_step(self, *given: Any, optimizer: Any, **also: Any) -> None:
        assert self.taught is not None, "a step follows a loss"
        live, every = self.processes.total(self.taught).tolist()
        self.taught, self.share = None, live / max(every, 1)
        if not live:
            optimizer.zero_grad(set_to_none=True)
        elif self.config.scale_steps:
            self._lengthen(optimizer, self.share)

    def on_optimizer_step(self, *given: Any, optimizer: Any, **also: Any) -> None:
        if self.share and self.config.scale_steps:
            self._lengthen(optimizer, 1 / self.share)

    @staticmethod
    def _lengthen(optimizer: Any, factor: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= factor

    def loss(self, model: Any, rows: Rows) -> torch.Tensor:
        """Returns the loss of a micro-batch, of which only the last sub-chunk still lacks its backward pass."""
        chunks = self._chunks(rows)
        most = self.processes.agree(max(len(chunk["advantages"]) for chunk in chunks))
        done: torch.Tensor | float = 0.0
        with self.policy.filled_up(most):
            for chunk in chunks[:-1]:
                with strategies.unsynchronised(self.accelerator, model):
                    loss = self._chunk_loss(model, chunk)
                    strategies.backward(self.accelerator, loss)
                done = done + loss.detach()
            return self._chunk_loss(model, chunks[-1]) + done

    def _chunks(self, rows: Rows) -> list[Rows]:
        """Cuts the rows of a micro-batch into sub-chunks of at most ``tokens_per_forward`` tokens. Leaves out rows that
        add exactly 0 to loss and gradient (``skip_zero_advantage``), and counts the tokens of ``taught``."""
        config, agree = self.config, self.processes.agree
        every = torch.ones(len(rows["advantages"]), dtype=torch.bool)
        live = live_rows(rows) if config.beta == 0.0 and config.entropy_coef == 0.0 else every
        tokens = (rows["completion_mask"] * rows["tool_mask"]).sum(1)
        counted = torch.stack([tokens[live].sum(), tokens.sum()])
        self.taught = counted if self.taught is None else self.taught + counted
        computed = live if config.skip_zero_advantage else every
        return sub_chunks(rows, computed, config.tokens_per_forward, agree)

    def _chunk_loss(self, model: Any, rows: Rows) -> torch.Tensor:
        """Returns TRL's loss and the added terms, as means over the same global tokens."""
        targets = {name.removeprefix(TARGET): value for name, value in rows.items() if name.startswith(TARGET)}
        policy = self.policy.loss(model, rows, targets.get(VOCABULARY))
        self.drift.saw(rows, policy.log_probs)
        if policy.logits is not None:
            targets["vocabulary"] = policy.logits
        return policy.loss + self._added(rows, targets, policy) / self.policy.token_normalizer(rows)

    def _added(self, rows: Rows, targets: Rows, policy: PolicyLoss) -> torch.Tensor | float:
        """Sums the auxiliary loss and the entropy bonus over the optimised tokens; 0 where there is neither."""
        bonus = self.config.entropy_coef
        if not targets and bonus == 0.0:
            return 0.0
        mask = rows["completion_mask"] * rows["tool_mask"]
        log_probs = policy.log_probs.masked_fill(mask == 0, 0.0)  # a difference from a target of 0 must stay finite
        per_token = -bonus * policy.entropies
        if targets:
            old = rows.get("old_per_token_logps", log_probs.detach())
            taught = targets.pop(TAUGHT, 1.0)
            weighted = self.method.auxiliary_weight * taught * self.method.auxiliary(targets, log_probs, old)
            per_token = per_token + weighted
        return (per_token * mask).sum()


def drift_sums(difference: torch.Tensor, mask: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Returns ``(5,)``: tokens, sum of ratios, sum of their squares, sum of the k3 estimates of KL(sampler || policy),
    and ratios outside [1 - low, 1 + high]. The host does not wait for the result.

    Args:
        difference: ``(R, L)`` log-probs of the policy less those of the sampler.
        mask: ``(R, L)`` bool, the optimised tokens.
    """
    difference = difference.float().masked_fill(~mask, 0.0).clamp(-20.0, 20.0)  # squares of ratios stay finite
    ratio = difference.exp()
    outside = (ratio < 1 - low) | (ratio > 1 + high)
    columns = (torch.ones_like(ratio), ratio, ratio.square(), ratio - 1 - difference, outside)
    return torch.stack([(column * mask).sum() for column in columns])


def drift_numbers(sums: torch.Tensor) -> dict[str, float]:
    """Returns means over tokens, and the effective sample size as a share: (sum of ratios)^2 / (tokens x sum of
    squares)."""
    tokens, ratio, square, kl, outside = sums.double().tolist()
    if not tokens:
        return {}
    return {
        "ratio": ratio / tokens,
        "outside_clip": outside / tokens,
        "kl": kl / tokens,
        "ess": ratio**2 / (tokens * square),
    }


class Drift(TrainerCallback):
    """Logs ``drift/step_<n>/...`` for the n-th optimiser step of each round, where a round has several."""

    def __init__(self, config: AlignOPSDConfig, processes: ProcessGroup, recorder: Recorder):
        self._processes, self._recorder, self._steps = processes, recorder, config.steps_per_round
        self._low, self._high = config.epsilon, config.epsilon_high or config.epsilon
        self._sums: torch.Tensor | None = None

    @torch.no_grad()
    def saw(self, rows: Mapping[str, torch.Tensor], log_probs: torch.Tensor) -> None:
        """Counts the optimised tokens of a forward of the update.

        Args:
            rows: of the update, with the sampler's log-probs where the update has them.
            log_probs: ``(R, L)`` of the policy.
        """
        old = rows.get("old_per_token_logps")
        if old is None or self._steps <= 1:
            return
        mask = (rows["completion_mask"] * rows["tool_mask"]).bool()
        sums = drift_sums(log_probs - old, mask, self._low, self._high)
        self._sums = sums if self._sums is None else self._sums + sums

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        if self._sums is None:
            return
        found = drift_numbers(self._processes.total(self._sums))
        number, self._sums = int((state.global_step - 1) % self._steps) + 1, None
        self._recorder.metrics({f"drift/step_{number}/{name}": value for name, value in found.items()})
