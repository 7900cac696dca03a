"""The method's options, each named once: `AlignOPSDConfig` inherits them, and studies vary them.

The defaults are the tables of the paper's appendices. What the authors' launchers set differently is a preset of the
recipes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from alignopsd_trl.common.options import Positive, PositiveCount, Share, Size, option, settle
from alignopsd_trl.environments.shipped import ACTION_GRAMMARS

if TYPE_CHECKING:
    ActionFilter = str
else:
    ActionFilter = Literal[("cosine", *ACTION_GRAMMARS, "none")]


@dataclass
class AlignOPSDOptions:
    """The options of AlignOPSD and of the paper's ablations. Each field's help says what it means.

    Raises:
        ValueError: for a value out of range, or two that can't go together; names field, value and remedy.
    """

    # Decision-aligned supervision rectification
    rectify: bool = option(True, "Re-score under matched sibling views. False: the identity gap (ablation 1).")
    similarity_threshold: Share = option(0.80, "gamma_H: least cosine of thinking traces for a match.")
    max_sources: PositiveCount = option(3, "K: most matched sources of a turn, at most one per sibling.")
    aggregation: Literal["probability_mixture", "log_mean"] = option(
        "probability_mixture", "How matched views are mixed: 'probability_mixture' or 'log_mean'."
    )
    aggregation_temperature: Positive = option(0.10, "tau: temperature of the softmax over matched similarities.")
    alpha_max: Share = option(0.80, "Largest weight of the matched views in the blend.")
    action_filter: ActionFilter = option(
        "cosine", "After matching: 'cosine' of actions, 'webshop' (also same operation, target) or 'none'."
    )
    action_threshold: Share = option(0.80, "Least cosine of actions for the filter.")

    # Semi-Markov hierarchical credit assignment
    allocation: Literal["span", "turn", "token", "random", "none"] = option(
        "span", "Unit of credit: 'span' (the method), 'turn', 'token', 'random' (ablations); 'none': the outcome's own."
    )
    profile_temperature: Positive = option(0.10, "Temperature of the dense correspondence profile.")
    valid_profiles: Literal["eligible", "matched"] = option(
        "eligible", "Profiles that count: 'eligible', with a source, or 'matched', with one above similarity_threshold."
    )
    profile_distance: Literal["jsd", "entropy", "cosine"] = option("jsd", "Distance of neighbouring profiles.")
    boundary_quantile: Share = option(0.80, "Quantile of the batch's profile shifts above which a span may end.")
    boundary_min: Size = option(0.01, "Lower clip of the boundary threshold.")
    boundary_max: Size = option(0.10, "Upper clip of the boundary threshold.")
    min_span: PositiveCount = option(2, "Fewest turns of a span.")
    max_span: PositiveCount = option(8, "Most turns of a span; at least 2 * min_span - 1.")
    credit_temperature: Positive = option(0.5, "T: how sharply evidence tilts the credit.")
    credit_spread: Positive | None = option(
        None,
        "Beyond the paper: standard deviation over tokens that the weights of a round get; T is then found "
        "every round, in place of credit_temperature.",
    )
    credit_mixing: Share = option(0.5, "eta: share of the tilted density in the weights.")
    weighting: Literal["capped", "band"] = option("capped", "Density's limits: [0, density_cap], or [1 - b, 1 + b].")
    density_cap: Annotated[float, Field(ge=1)] = option(4.0, "d_max: upper bound of the turn density, whose mean is 1.")
    band: Size = option(0.5, "b of weighting='band'.")

    # Auxiliary loss: none in the paper, two of the released launchers, and one beyond both
    auxiliary_loss: Literal["none", "alignment", "sdar", "distribution"] = option(
        "none",
        "'none' (paper), 'alignment' (rectified teacher), 'sdar' (identity), or, beyond the paper, "
        "'distribution': a divergence to the rectified teacher's likeliest tokens.",
    )
    auxiliary_coefficient: Size = option(0.01, "Weight of auxiliary_loss='alignment' and 'sdar'.")
    gate_beta: Size = option(5.0, "Slope of the sigmoid gate of these two.")
    distribution_coefficient: Size = option(1.0, "Weight of auxiliary_loss='distribution', beside the policy loss.")
    distribution_rounds: PositiveCount | None = option(
        None, "Rounds after which the distribution no longer teaches, and the policy loss goes on alone. None: never."
    )
    distribution_size: PositiveCount = option(50, "The teacher's likeliest tokens that it compares, renormalised.")
    distribution_beta: Share = option(0.5, "0 is KL(teacher || student), 1 the reverse, 0.5 is symmetric.")
    distribution_temperature: Positive = option(1.0, "Divides the logits of the student and of each view.")
    distribution_weighting: Literal["flat", "span", "evidence"] = option(
        "flat", "Weight of a token: 'flat', its 'span's share of the credit, or 'evidence', the weight of its credit."
    )

    def __post_init__(self) -> None:
        # a config that inherits the options goes on with TRL's own, after it has settled all its fields
        getattr(super(), "__post_init__", lambda: settle(self))()
        if self.similarity_threshold >= 1.0:
            raise ValueError("similarity_threshold=1.0 leaves no range for the match confidence; use a value below 1")
        if self.max_span < 2 * self.min_span - 1:
            raise ValueError(
                f"max_span={self.max_span} is too small for min_span={self.min_span}: a span one turn too long could "
                f"not be cut in two. Set max_span to at least {2 * self.min_span - 1}."
            )
        if self.credit_spread is not None and self.allocation in ("token", "none"):
            raise ValueError(
                f"credit_spread={self.credit_spread} needs weights of turns, which allocation={self.allocation!r} does "
                "not make; use 'span', 'turn' or 'random', or credit_spread=None"
            )
        needed = {"flat": None, "span": ("span", "random"), "evidence": ("span", "random", "turn", "token")}
        choices = needed[self.distribution_weighting]
        if self.auxiliary_loss == "distribution" and choices and self.allocation not in choices:
            raise ValueError(
                f"distribution_weighting={self.distribution_weighting!r} needs weights that allocation="
                f"{self.allocation!r} does not make; use {' or '.join(map(repr, choices))}, or 'flat'"
            )
        if self.boundary_min > self.boundary_max:
            raise ValueError(
                f"boundary_min={self.boundary_min} must not exceed boundary_max={self.boundary_max}: the threshold is "
                "clipped between them"
            )


OPTION_NAMES = tuple(one.name for one in fields(AlignOPSDOptions))
"""What rows of a study may differ in, beside the options of other methods, and variants of a measurement too."""
