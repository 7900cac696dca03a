"""Options of a warm start, known before PyTorch is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass

from alignopsd_trl.common.options import option

FRESH = "tiny"
LIST = "list"
SMALL = "small"
PROGRAMS = {SMALL: 1024, "codex": 32768, "opencode": 32768, "claude": 65536, "pi": 16384, "mini-swe-agent": 16384}
"""Coding agents that `new` writes a task for, and the tokens that a dialogue of one may have."""
SCRIPTED, ASKED = 1024, 256
"""Default numbers of demonstrated episodes, by a scripted player and by an endpoint."""
SKILLED_SHARE = 0.5
"""Default share of demonstrated episodes that are played under the skill."""

TIME_LIMIT = 10.0
"""Seconds that one call of the environment may take in `check`; a longer call counts as hanging."""


@dataclass
class WarmStartConfig:
    """The settings of a warm start. Minutes and a learning rate of `None` depend on the model: few and high for a fresh
    model, more and low for a pretrained one."""

    model: str = option(FRESH, "hub id, path, or 'tiny': a fresh model for these words")
    minutes: float | None = option(None, "of training by the clock; 2 for 'tiny', else 10")
    max_steps: int = option(-1, "so many updates, in place of minutes")
    until_read: float | None = option(
        None, "ends soon after so many held-out turns with the skill are the player's, such as 0.95"
    )
    batch_size: int = option(16, "turns of an update")
    learning_rate: float | None = option(None, "2e-3 for 'tiny', 2e-4 with LoRA, else 2e-5")
    use_peft: bool = option(False, "train LoRA adapters, which are merged at the end")
    lora_r: int = option(16, "rank of the adapters")
    layers: int = option(2, "of 'tiny'")
    seed: int = option(0, "of weights and order")

    def __post_init__(self) -> None:
        for name in ("minutes", "learning_rate", "batch_size", "lora_r", "layers"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name} {value} must be a number above 0")
        if self.until_read is not None and not 0 < self.until_read <= 1:
            raise ValueError(f"--until_read {self.until_read} must be above 0, and 1 at most")
        if self.max_steps == 0 or self.max_steps < -1:
            raise ValueError(f"--max_steps {self.max_steps} must be 1 or more, or -1 for --minutes")
        if self.use_peft and self.fresh:
            raise ValueError("--use_peft needs a model that knows something; leave it out with --model tiny")

    @property
    def fresh(self) -> bool:
        return self.model == FRESH

    @property
    def time(self) -> float:
        """The minutes of training."""
        return self.minutes or (2.0 if self.fresh else 10.0)

    @property
    def rate(self) -> float:
        """The learning rate."""
        return self.learning_rate or (2e-3 if self.fresh else 2e-4 if self.use_peft else 2e-5)
