"""What the policy says of its own responses, now and under the privileged view, and the reference of them."""

from __future__ import annotations

from typing import Any

import torch
from trl import GRPOTrainer

from alignopsd_trl import trl_compat
from alignopsd_trl.policy import strategies
from alignopsd_trl.policy.phases import Phases
from alignopsd_trl.policy.ragged import Ragged
from alignopsd_trl.policy.scoring import score_pairs
from alignopsd_trl.policy.self_check import SelfCheck
from alignopsd_trl.policy.teacher import PrivilegedTeacher
from alignopsd_trl.policy.turn_rows import (
    sampling_log_probs,
)
from alignopsd_trl.rollout import (
    generate_sorted,
)
from alignopsd_trl.turns import TurnBatch


class Views(GRPOTrainer):
    """A trainer that scores responses and thinks under the privileged view, with the weights that made the rollouts."""

    @property
    def _merges(self) -> bool:
        """Whether turns that go on from one another are one row."""
        return self.args.history == "conversation" and self.args.merge_rows

    def _teacher(self, phases: Phases | None = None) -> PrivilegedTeacher:
        return PrivilegedTeacher(
            trl_compat.PolicyScorer(self),
            self._think,
            self.processing_class,
            self.encoder,
            budget=self.args.scoring_tokens,
            share_prefixes=self._share_prefixes,
            nested=self._merges,
            agree=self.processes.agree,
            gather=self.processes.gather,
            phases=phases or self.phases,
            reader=self._reader,
            think_alone=self._think_alone,
            prefixes=self._prefixes if self._share_prefixes and trl_compat.scores_as_sampled(self) else None,
        )

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        if self.model.training and trl_compat.samples_plainly(self):  # evaluations play through the loop of `evaluate`
            return trl_compat.decode(self, prompt_ids)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    def _think(self, prompts: list[list[int]]) -> tuple[list[list[int]], Any]:
        limit = self.args.teacher_max_completion_length or self.max_completion_length
        size = trl_compat.rows_at_once(self, prompts, limit, least=self._environment_slots)
        with trl_compat.sampling(self, self.temperature, limit):
            return generate_sorted(lambda part: trl_compat.generate(self, part), prompts, size)

    def _think_alone(self, prompts: list[list[int]]) -> tuple[list[list[int]], Any]:
        """Responses that may end with their thinking."""
        self._until = self._reader
        try:
            return self._think(prompts)
        finally:
            self._until = None

    def _self_check(self, batch: TurnBatch) -> dict[str, float]:
        if not self.args.self_check:
            return {}
        fresh = self.beta != 0.0 and self.state.global_step == 0
        with self.phases("self_check"):
            check = SelfCheck(
                self.processes,
                trl_compat.PolicyScorer(self),
                trl_compat.PolicyScorer(self, reference=True) if fresh else None,
                self._teacher(Phases()).score if self.method.needs_teacher else None,
                self.encoder if self.method.needs_encoder else None,
                pad_id=self.processing_class.pad_token_id,
                budget=self.args.scoring_tokens,
                shared=self._share_prefixes,
                sampled=self.use_vllm,
                exact=strategies.computes_exactly(self.accelerator, self.model),
            )
            self._rounds_checked += 1
            if self._rounds_checked == 1:
                return check.first_round(batch)
            return check.later_round(batch, strict=self._rounds_checked == 2)

    def _snapshot_columns(self, batch: TurnBatch) -> dict[str, torch.Tensor]:
        """Log-probs of the sampled responses under their own prompts: by the snapshot, and by the reference."""
        columns = {}
        with self.phases("scoring"):
            if self.method.needs_student_log_probs or trl_compat.needs_old_log_probs(self):
                kept = self._kept_log_probs(batch)
                batch.student_log_probs = self._score_own(batch, reference=False) if kept is None else kept
            if trl_compat.needs_old_log_probs(self):
                columns["old_per_token_logps"] = batch.student_log_probs
            if self.beta != 0.0:
                columns["ref_per_token_logps"] = self._score_own(batch, reference=True)
        return columns

    def _kept_log_probs(self, batch: TurnBatch) -> torch.Tensor | None:
        """What sampling kept, if it is what scoring would give on every process."""
        if self.use_vllm or not trl_compat.scores_as_sampled(self):
            return None
        found = sampling_log_probs(batch.turns, batch.policy_mask.size(1), self.accelerator.device)
        return None if self.processes.agree(int(found.isnan().any())) else found

    def _score_own(self, batch: TurnBatch, reference: bool) -> torch.Tensor:
        updated = reference or trl_compat.needs_old_log_probs(self)
        wanted = torch.ones(len(batch), dtype=torch.bool) if batch.scored is None or updated else batch.scored.cpu()
        rows = wanted.nonzero().squeeze(1)
        scores = score_pairs(
            trl_compat.PolicyScorer(self, reference),
            Ragged.of([turn.prompt_ids for turn in batch.turns]),
            Ragged.of([turn.response_ids for turn in batch.turns]),
            rows,
            rows,
            pad_id=self.processing_class.pad_token_id,
            budget=self.args.scoring_tokens,
            shared=self._share_prefixes,
            nested=self._merges,
            agree=self.processes.agree,
        )
        result = scores.new_zeros(batch.policy_mask.shape)
        result[rows.to(result.device)] = scores[:, : result.size(1)]
        return result
