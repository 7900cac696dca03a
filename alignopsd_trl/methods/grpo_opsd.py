"""GRPO+OPSD: the outcome's policy loss and token-level self-distillation, jointly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from alignopsd_trl.methods.distillation import AuxiliaryOptions, Distillation, VocabularyOptions
from alignopsd_trl.methods.registry import register


@dataclass(frozen=True)
class GRPOOPSDOptions(VocabularyOptions, AuxiliaryOptions):
    form: Literal["sampled_token", "constant_gate", "vocabulary"] = field(
        default="sampled_token",
        metadata={
            "help": "'sampled_token': OPSD's objective beside GRPO's. 'constant_gate': the release behind the "
            "published ALFWorld, WebShop and 7B cells, a gate of 1/2 from whose gradient the teacher cancels out. "
            "'vocabulary': the main form of OPSD's authors beside GRPO's; no figure of the table used it.",
        },
    )


@register
class GRPOOPSD(Distillation):
    """GRPO plus 0.01 times OPSD's loss.

    Objective: L_clip(A) + 0.01 Agg(-sg(rho (l+ - l)) l). ``form="constant_gate"``: L_clip(A) + 0.01 Agg((l+ - l) / 2),
    whose gradient does not contain the teacher: zero in expectation on-policy, weak self-imitation later in a batch.
    ``form="vocabulary"``: L_clip(A) + ``vocabulary_coefficient`` times the divergence of `OPSD`'s form of that name.

    Contexts: rollout, loss and evaluation without skill, teacher with it. Detached: the teacher and rho.

    Source: the joint objective as the paper describes it; coefficient and constant gate from SDAR's release.
    Confidence: release form high; that its coefficient suits the sampled-token form is inferred; which form the
    published 3B Search-QA cells used is unknown.
    """

    name = "grpo_opsd"
    Options = GRPOOPSDOptions

    @property
    def gate_slope(self) -> float | None:
        return 0.0 if self.options.form == "constant_gate" else None
