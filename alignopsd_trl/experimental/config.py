"""ContinuousConfig: the trainer's configuration, and the options of play in which no episode waits for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from alignopsd_trl.common.options import option
from alignopsd_trl.config import AlignOPSDConfig


@dataclass
class ContinuousConfig(AlignOPSDConfig):
    """Configuration of [`ContinuousTrainer`]: each process asks its vLLM engine or the server for each turn by itself,
    with a seed from the episode and the turn's number.

    Raises:
        ValueError: as [`AlignOPSDConfig`], and where there is no engine that a process can ask by itself.
    """

    use_vllm: bool = option(True, "Sample with vLLM, which continuous play needs.")
    rounds_ahead: Literal[0, 1] = option(
        0,
        "1: while a round is credited and optimised, vLLM's server plays the next one, with weights that "
        "are a round old at most (docs/experimental.md). 0: on-policy.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._need("ContinuousConfig", use_vllm=True)
        if self.vllm_mode != "server":
            self._need("an engine that each process asks by itself", vllm_tensor_parallel_size=1)
        if self.rounds_ahead:
            needed = {"vllm_mode": "server", "vllm_importance_sampling_correction": True, "teacher_model_kind": "live"}
            self._need(f"rounds_ahead={self.rounds_ahead}", **needed)

    def _need(self, what: str, **values: object) -> None:
        wrong = {name: value for name, value in values.items() if getattr(self, name) != value}
        if wrong:
            found = ", ".join(f"{name}={getattr(self, name)!r}" for name in wrong)
            remedy = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
            raise ValueError(f"{what} does not go with {found}; set {remedy}")
