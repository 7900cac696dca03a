"""Scores sampled responses under the policy, the reference and the privileged view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedTokenizerBase

from alignopsd_trl.common.patched import patched
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Method
from alignopsd_trl.methods.grpo import not_scored
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.sampling.backend import Snapshot
from alignopsd_trl.scoring.model import ModelScorer
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.self_check import SelfCheck
from alignopsd_trl.scoring.teacher import PrivilegedTeacher
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.training.phases import Phases
from alignopsd_trl.turns import Trajectory, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import TrainedPolicy


@dataclass(eq=False)
class Scorer:
    """Scores one policy's responses under its views.

    Args:
        policy: scores with the policy's weights.
        reference: scores with the weights of the loss's reference term; `None` without such a term.
        privileged: scores with the teacher's weights; `None` if the policy itself is the teacher.
        shared: whether a prompt may be encoded once for several responses.
    """

    trained: TrainedPolicy
    policy: ModelScorer
    reference: ModelScorer | None
    privileged: ModelScorer | None
    config: AlignOPSDConfig
    tokenizer: PreTrainedTokenizerBase
    encoder: Callable[[Sequence[str]], torch.Tensor] | None
    processes: ProcessGroup
    phases: Phases
    _: KW_ONLY
    shared: bool
    _checks: int = field(default=0, init=False)

    def teacher(self, snapshot: Snapshot, reader: Reader, distributions: bool = False) -> PrivilegedTeacher:
        """Makes the privileged view of a snapshot, which is asked for whole ``distributions`` or for scores alone."""
        return PrivilegedTeacher(
            self.privileged or self.policy,
            snapshot.thinker,
            self.tokenizer,
            self.encoder,
            forwards=self._forwards(snapshot.privileged_prefixes),
            gather=self.processes.gather,
            phases=self.phases,
            reader=reader,
            states={} if distributions else None,
        )

    def batch(self, trajectories: Sequence[Trajectory], method: Method, snapshot: Snapshot) -> TurnBatch:
        """Makes the batch of a snapshot's round, with the masks and log-probs that the method and the update need."""
        batch = TurnBatch.of(trajectories, self.tokenizer.pad_token_id, self.policy.device)
        if self.config.mask_truncated_completions:
            kept = torch.tensor([not turn.truncated for turn in batch.turns], dtype=torch.bool)
            batch = replace(batch, policy_mask=batch.policy_mask & kept.to(self.policy.device)[:, None])
        idle = not_scored(method, batch)
        if self.config.skip_zero_advantage:
            batch = replace(batch, scored=~idle)
        if not self.config.teach_solved:
            assert batch.won is not None, "`TurnBatch.of` knows it"
            unsolved = ~idle | torch.isin(batch.task, batch.task[~batch.won])
            batch = replace(batch, taught=unsolved if batch.taught is None else batch.taught & unsolved)
        with self.phases("scoring"):
            if method.needs_student_log_probs or self.trained.needs_old_log_probs:
                batch = replace(batch, student_log_probs=self.student(batch, snapshot.prefixes))
            if self.reference is not None:
                batch = replace(batch, reference_log_probs=self.own(batch, reference=True))
        return batch

    def student(self, batch: TurnBatch, prefixes: PrefixCache | None) -> torch.Tensor:
        """Returns the policy's log-probs ``(M, L)``: those from sampling where scoring gives the same, else scores."""
        if not self.trained.scores_as_sampled:
            return self.own(batch, prefixes=prefixes)
        found = batch.sampling_log_probs()
        missing = found.isnan().any(dim=1)
        if not self.processes.agree(int(missing.any())):
            return found
        return torch.where(missing[:, None], self.own(batch, among=missing.cpu(), prefixes=prefixes), found)

    def own(
        self,
        batch: TurnBatch,
        reference: bool = False,
        among: torch.Tensor | None = None,
        prefixes: PrefixCache | None = None,
    ) -> torch.Tensor:
        """Returns log-probs ``(M, L)`` of responses under their own prompts, 0 for the turns that are not scored.

        Args:
            among: ``(M,)`` bool, the turns to score; by default all that something reads.
        """
        every = reference or self.trained.needs_old_log_probs or batch.scored is None
        wanted = torch.ones(len(batch), dtype=torch.bool) if every else batch.scored.cpu()
        wanted = wanted if among is None else wanted & among
        rows = wanted.nonzero().squeeze(1)
        model = self.reference if reference else self.policy
        assert model is not None, "who asks for the reference's has one"
        scores = score_pairs(
            model,
            Ragged.of([turn.prompt_ids for turn in batch.turns]),
            Ragged.of([turn.response_ids for turn in batch.turns]),
            rows,
            rows,
            self._forwards(prefixes),
        )
        result = scores.new_zeros(batch.policy_mask.shape)
        result[rows.to(result.device)] = scores[:, : result.size(1)]
        return result

    def _forwards(self, prefixes: PrefixCache | None) -> Forwards:
        return Forwards(
            pad_id=self.tokenizer.pad_token_id,
            budget=self.config.tokens_per_forward,
            shared=self.shared,
            nested=self.config.merges_rows,
            agree=self.processes.agree,
            prefixes=prefixes if self.shared else None,
        )

    def self_check(
        self, batch: TurnBatch, teacher: PrivilegedTeacher, method: Method, prefixes: PrefixCache | None
    ) -> dict[str, float]:
        """Compares the ways to score on a few turns of the batch; most checks run in the first round. Policy and
        reference are equal before the first update. All seconds count as those of the check."""
        if not self.config.self_check:
            return {}
        with self.phases("self_check"), patched(teacher, phases=lambda name: nullcontext()):
            check = SelfCheck(
                self.processes,
                self.policy,
                self.reference if self.trained.state.global_step == 0 else None,
                teacher.score if method.needs_teacher and self.privileged is None else None,
                self.encoder if method.needs_encoder else None,
                forwards=self._forwards(prefixes),
                sampled=self.trained.sampled_by_engine and not self.config.narrows_sampling,
                exact=self.trained.computes_exactly,
                thinks=(self.privileged, teacher.sampler)
                if self.privileged and self.trained.sampled_by_engine
                else None,
            )
            self._checks += 1
            return check.compare(batch, self._checks)
