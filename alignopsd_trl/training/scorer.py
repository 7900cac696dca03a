"""Scores what was sampled: by the policy that sampled it, by the reference, and under the privileged view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Method
from alignopsd_trl.policy.phases import Phases
from alignopsd_trl.policy.process_group import ProcessGroup
from alignopsd_trl.policy.ragged import Ragged
from alignopsd_trl.policy.scoring import ScoringModel, score_pairs
from alignopsd_trl.policy.self_check import SelfCheck
from alignopsd_trl.policy.teacher import PrivilegedTeacher
from alignopsd_trl.policy.turn_rows import sampling_log_probs
from alignopsd_trl.reading import Reader
from alignopsd_trl.training.round import Snapshot
from alignopsd_trl.turns import Trajectory, TurnBatch


class Scorer:
    """The views of one policy on its responses.

    Args:
        policy: scores with the trained weights.
        reference: scores with the weights that the loss holds the policy to; `None` without such a term.
        teacher: scores with the teacher's weights; `None` if the policy itself is the teacher.
        encoder: of thinking traces.
        processes: who scores at the same time.
        phases: where the seconds go.
        shared: whether a prompt may be encoded once for several responses.
        as_sampled: says whether scoring would give the log-probs that the sampler kept.
        updated: says whether the update must be told the snapshot's log-probs.
    """

    def __init__(
        self,
        policy: ScoringModel,
        reference: ScoringModel | None,
        teacher: ScoringModel | None,
        config: AlignOPSDConfig,
        tokenizer: PreTrainedTokenizerBase,
        encoder: Callable[[Sequence[str]], torch.Tensor] | None,
        processes: ProcessGroup,
        phases: Phases,
        *,
        shared: bool,
        as_sampled: Callable[[], bool],
        updated: Callable[[], bool],
    ):
        self._policy, self._reference, self._teacher = policy, reference, teacher
        self._config, self._tokenizer = config, tokenizer
        self._encoder, self._processes, self._phases, self._shared = encoder, processes, phases, shared
        self._as_sampled, self._updated = as_sampled, updated
        self._checks = 0

    def teacher(self, snapshot: Snapshot, reader: Reader, phases: Phases | None = None) -> PrivilegedTeacher:
        """Makes the privileged view of a snapshot."""
        return PrivilegedTeacher(
            self._teacher or self._policy,
            snapshot.thinker,
            self._tokenizer,
            self._encoder,
            budget=self._config.scoring_tokens,
            share_prefixes=self._shared,
            nested=self._config.merges_rows,
            agree=self._processes.agree,
            gather=self._processes.gather,
            phases=phases or self._phases,
            reader=reader,
            prefixes=snapshot.prefixes if self._shared and self._as_sampled() else None,
        )

    def batch(self, trajectories: Sequence[Trajectory], method: Method) -> TurnBatch:
        """The turns of a round with the masks and log-probs that the method and the update ask for."""
        batch = TurnBatch.of(trajectories, self._tokenizer.pad_token_id, self._policy.device)
        if self._config.mask_truncated_completions:
            kept = torch.tensor([not turn.truncated for turn in batch.turns], dtype=torch.bool)
            batch = replace(batch, policy_mask=batch.policy_mask & kept.to(self._policy.device)[:, None])
        if self._config.skip_zero_advantage:
            batch = replace(batch, scored=~method.zero_advantage(batch))
        with self._phases("scoring"):
            if method.needs_student_log_probs or self._updated():
                batch = replace(batch, student_log_probs=self.student(batch))
            if self._reference is not None:
                batch = replace(batch, reference_log_probs=self.own(batch, reference=True))
        return batch

    def student(self, batch: TurnBatch) -> torch.Tensor:
        """The policy's log-probs ``(M, L)``: what sampling kept, if it is what scoring would give, and scores of the
        turns without."""
        if not self._as_sampled():
            return self.own(batch)
        found = sampling_log_probs(batch.turns, batch.policy_mask.size(1), self._policy.device)
        missing = found.isnan().any(dim=1)
        if not self._processes.agree(int(missing.any())):
            return found
        return torch.where(missing[:, None], self.own(batch, among=missing.cpu()), found)

    def own(self, batch: TurnBatch, reference: bool = False, among: torch.Tensor | None = None) -> torch.Tensor:
        """Log-probs ``(M, L)`` of the responses under their own prompts, by the policy or by the reference. 0 for turns
        that nobody asks for, and for those that are not ``among`` them, ``(M,)`` bool."""
        every = reference or self._updated() or batch.scored is None
        wanted = torch.ones(len(batch), dtype=torch.bool) if every else batch.scored.cpu()
        wanted = wanted if among is None else wanted & among
        rows = wanted.nonzero().squeeze(1)
        model = self._reference if reference else self._policy
        assert model is not None, "who asks for the reference's has one"
        scores = score_pairs(
            model,
            Ragged.of([turn.prompt_ids for turn in batch.turns]),
            Ragged.of([turn.response_ids for turn in batch.turns]),
            rows,
            rows,
            pad_id=self._tokenizer.pad_token_id,
            budget=self._config.scoring_tokens,
            shared=self._shared,
            nested=self._config.merges_rows,
            agree=self._processes.agree,
        )
        result = scores.new_zeros(batch.policy_mask.shape)
        result[rows.to(result.device)] = scores[:, : result.size(1)]
        return result

    def self_check(
        self, batch: TurnBatch, teacher: PrivilegedTeacher, method: Method, *, fresh: bool, sampled: bool, exact: bool
    ) -> dict[str, float]:
        """Holds the ways to score against one another on a few turns of the batch; most in the first round.

        Args:
            teacher: whose seconds count for nothing else.
            fresh: nothing was trained yet, so that policy and reference are equal.
            sampled: an engine samples.
            exact: the policy's forward is float32 throughout.
        """
        if not self._config.self_check:
            return {}
        with self._phases("self_check"):
            check = SelfCheck(
                self._processes,
                self._policy,
                self._reference if fresh else None,
                teacher.score if method.needs_teacher and self._teacher is None else None,
                self._encoder if method.needs_encoder else None,
                pad_id=self._tokenizer.pad_token_id,
                budget=self._config.scoring_tokens,
                shared=self._shared,
                sampled=sampled,
                exact=exact,
            )
            self._checks += 1
            if self._checks == 1:
                return check.first_round(batch)
            return check.later_round(batch, strict=self._checks == 2)
