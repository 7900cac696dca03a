"""bfloat16 is used where it is measured to be faster; float16 trains where a GPU has no bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.trainers import losses, make_trainer, variety
from peft import LoraConfig

from alignopsd_trl.commands.own_task.warm_start import precision


@pytest.mark.parametrize(("float32", "bfloat16", "pays"), [(3.0, 1.0, True), (1.0, 3.0, False), (1.0, 0.95, False)])
def test_bfloat16_pays_where_it_is_clearly_faster(
    float32: float, bfloat16: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {torch.float32: float32, torch.bfloat16: bfloat16}
    monkeypatch.setattr(precision, "seconds_of_product", lambda width, kind: seconds[kind])
    assert precision.bfloat16_pays(576) is pays


def test_the_quickest_of_many_products_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.0, 0.5, 0.5, 0.7, 0.7, 1.1, 9.0])
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(precision, "SECONDS", 1.0)
    assert precision.seconds_of_product(4, torch.float32) == pytest.approx(0.2)


@pytest.mark.full
@pytest.mark.parametrize("adapter", [False, True], ids=["weights in float32", "adapter on weights in float16"])
def test_float16_with_a_loss_scaler_trains_where_bfloat16_is_missing(adapter: bool, tmp_path: Path) -> None:
    """A T4's precision. Accelerate lets no CPU have it, so autocast and scaler are put into its place here."""
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    parts = {"peft_config": lora} if adapter else {}
    kind = {"model_init_kwargs": {"dtype": "float16"}} if adapter else {}
    own = {"max_steps": 2, "method": "align_opsd", "auxiliary_loss": "distribution", "teacher_model_kind": "base"}
    whole, half = (
        make_trainer(tmp_path / name, parts={**parts, "reward_funcs": variety}, max_grad_norm=1.0, **own, **given)
        for name, given in (("whole", {}), ("half", kind))
    )
    state = half.accelerator.state
    state._mixed_precision, half.accelerator.native_amp = "fp16", True
    half.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    try:
        half.train()
    finally:
        state._mixed_precision = "no"
    whole.train()
    assert {one.dtype for one in half.model.parameters() if one.requires_grad} == {torch.float32}
    assert losses(half) == pytest.approx(losses(whole), abs=0.02) and losses(half) != losses(whole)
    assert half.accelerator.scaler.get_scale() == 2.0**10, "no step was skipped"
    assert any(value.any() for gradients in half.seen_gradients for value in gradients.values())
