"""Makes the rows of a round that TRL's loss reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.methods import Credit
from alignopsd_trl.training.recorder import Recorder
from alignopsd_trl.training.turn_rows import TARGET, Layout, collate_rows
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat.policy import TrainedPolicy


@dataclass(eq=False)
class RowMaker:
    """Makes TRL's rows from a batch and its credit, equally many on each process.

    Args:
        pad_id, end_id: of the tokenizer.
        policy: the policy whose update reads the rows.
        recorder: logs the difference of the sampler's log-probs from the policy's.
    """

    config: AlignOPSDConfig
    processes: ProcessGroup
    pad_id: int
    end_id: int
    policy: TrainedPolicy
    recorder: Recorder

    def rows(self, batch: TurnBatch, credit: Credit, coefficient: float) -> dict[str, torch.Tensor]:
        """Returns one row per turn, or one per run of turns where rows are merged.

        Args:
            coefficient: weight of the policy term; multiplies the advantages.
        """
        parts = self.config.steps_per_generation
        layout = Layout.of(batch, merge=self.config.merges_rows)
        columns = self._columns(batch, credit, coefficient)
        count = -(-max(self.processes.agree(len(layout)), 1) // parts) * parts
        rows = collate_rows(batch, columns, count, self.pad_id, self.end_id, layout)
        rows["num_items_in_batch"] = self.processes.total(batch.policy_mask.sum())
        return rows

    def _columns(self, batch: TurnBatch, credit: Credit, coefficient: float) -> dict[str, torch.Tensor]:
        columns = {"advantages": credit.advantages * coefficient}
        if self.policy.needs_old_log_probs:
            assert batch.student_log_probs is not None, "`Scorer.batch` scores where the update asks"
            columns["old_per_token_logps"] = batch.student_log_probs
        if batch.reference_log_probs is not None:
            columns["ref_per_token_logps"] = batch.reference_log_probs
        columns |= {TARGET + name: values for name, values in credit.targets.items()}
        return columns | self.policy.sampling_columns(batch, partial(self.recorder.metrics, "train"))
