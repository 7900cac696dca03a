"""Parts of the trainer, made without one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from fakes.trainers import make_config

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.methods import get_method
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.runs.health import FailedShare, RunStopped
from alignopsd_trl.training.checkpoints import Checkpoints
from alignopsd_trl.training.loss import Drift, Update
from alignopsd_trl.training.phases import Phases, Seconds
from alignopsd_trl.training.trl_policy import PolicyLoss


class StandIn:
    """A policy of one weight, in place of `TrainedPolicy`: a token's log-prob and entropy are the weight."""

    def __init__(self, norm: float | None = None):
        self.model, self.norm, self.saved, self.chunks = torch.nn.Linear(1, 1, bias=False), norm, 0, []

    def gradient_norm(self) -> float | None:
        return self.norm

    def save_checkpoint(self) -> None:
        self.saved += 1

    def filled_up(self, rows: int) -> Any:
        return contextlib.nullcontext()

    def token_normalizer(self, rows: dict[str, torch.Tensor]) -> float:
        return 4.0

    def loss(self, model: Any, rows: dict[str, torch.Tensor], tokens: Any = None) -> PolicyLoss:
        self.chunks.append(len(rows["advantages"]))
        values = self.model.weight.expand(rows["completion_ids"].shape)
        summed = (rows["advantages"] * values * rows["completion_mask"]).sum()
        return PolicyLoss(summed, values, values, None)


def test_a_gradient_that_is_not_finite_ends_the_run_and_a_checkpoint_is_written_once_asked(tmp_path: Path) -> None:
    policy: Any = StandIn(norm=float("nan"))
    processes = ProcessGroup(Accelerator(cpu=True))
    part = Checkpoints(tmp_path, processes, policy, Seconds(), Phases(), FailedShare(0.5))
    state: Any = type("State", (), {"global_step": 3})
    with pytest.raises(RunStopped, match=r"update 4: .*gradient norm nan"):
        part.on_pre_optimizer_step(None, state, None)
    part.save_last(3)
    assert policy.saved == 1
    torch.nn.init.constant_(policy.model.weight, float("inf"))
    with pytest.raises(RunStopped, match="after update 3 the weights are not finite"):
        part.check_weights(3)


@pytest.mark.parametrize(("tokens", "chunks"), [(5, 3), (10, 2), (40, 1)])
def test_an_update_gives_the_same_gradient_however_its_rows_are_cut(tmp_path: Path, tokens: int, chunks: int) -> None:
    """By hand: tokens times advantages are 2 x 1 - 1 x 2 + 3 x 3 = 9; the bonus is -0.5 x 6 tokens / 4."""
    config = make_config(tmp_path, tokens_per_forward=tokens, entropy_coef=0.5)
    policy: Any = StandIn()
    recorder: Any = None
    accelerator = Accelerator(cpu=True)
    processes = ProcessGroup(accelerator)
    drift = Drift(config, processes, recorder)
    update = Update(policy, accelerator, config, get_method("grpo")(config), processes, drift)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    ones = torch.ones(3, 2, dtype=torch.long)
    rows = {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": mask, "completion_mask": mask}
    rows |= {"tool_mask": mask, "advantages": torch.tensor([[1.0], [-2.0], [3.0]]).expand(3, 3)}
    accelerator.backward(update.loss(policy.model, rows))
    assert len(policy.chunks) == chunks
    assert policy.model.weight.grad.item() == pytest.approx(9.0 - 0.5 * 6 / 4)


def test_options_of_playing_are_fields_of_the_configuration_with_the_same_defaults(tmp_path: Path) -> None:
    assert PlayOptions.of(make_config(tmp_path, max_prompt_length=4096)) == PlayOptions()
