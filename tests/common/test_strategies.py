"""Ways of spreading the policy: which are refused, and what holds under all."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from fakes.toy import ToyEnvironment
from fakes.trainers import make_trainer

from alignopsd_trl.common import strategies
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.environments import EnvironmentsDown
from alignopsd_trl.training.trl_construction import loaded_whole
from alignopsd_trl.training.turn_rows import collate_rows, select_and_trim, with_rows
from alignopsd_trl.turns import TurnBatch


def accelerator(kind: str, parallelism: Any = None, **zero: Any) -> SimpleNamespace:
    version = int(kind[-1]) if kind.startswith("fsdp") else None
    own = {"stage": 2, "stage3_gather_16bit_weights_on_model_save": True, **zero.pop("zero_optimization", {})}
    config = {"zero_optimization": own, **zero}
    stage = config["zero_optimization"]["stage"]
    state = SimpleNamespace(
        fsdp_plugin=SimpleNamespace(fsdp_version=version),
        deepspeed_plugin=SimpleNamespace(deepspeed_config=config, zero_stage=stage),
    )
    names = {"fsdp1": "FSDP", "fsdp2": "FSDP"}
    return SimpleNamespace(
        distributed_type=DistributedType[names.get(kind, kind)], state=state, parallelism_config=parallelism
    )


REFUSED = [
    (accelerator("fsdp1"), "FSDP1 .*Proven are one process, DDP, FSDP2"),
    (accelerator("MEGATRON_LM"), "MEGATRON_LM"),
    (accelerator("XLA"), "XLA"),
    (accelerator("DEEPSPEED", zero_optimization={"stage": 1}), "ZeRO-1"),
    (accelerator("DEEPSPEED", pipeline={"stages": 2}), "'pipeline'"),
    (accelerator("fsdp2", SimpleNamespace(tp_size=2)), r"tensor parallelism of the trainer \(tp_size=2\)"),
    (accelerator("fsdp2", SimpleNamespace(cp_size=4)), "context parallelism"),
    (accelerator("fsdp2", SimpleNamespace(dp_replicate_size=2)), "hybrid sharding"),
    (
        accelerator("DEEPSPEED", zero_optimization={"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}),
        "zero3_save_16bit_model: true",
    ),
]


@pytest.mark.parametrize(("world", "message"), REFUSED)
def test_what_nothing_has_proven_is_refused_with_what_is(world: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strategies.refuse_unproven(world)


@pytest.mark.parametrize("kind", ["NO", "MULTI_CPU", "MULTI_GPU", "fsdp2", "DEEPSPEED"])
def test_what_is_proven_is_accepted(kind: str) -> None:
    strategies.refuse_unproven(accelerator(kind))
    strategies.refuse_unproven(accelerator("DEEPSPEED", zero_optimization={"stage": 3}))


@pytest.mark.parametrize("before", ["true", None])
def test_loading_whole_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    name = "FSDP_CPU_RAM_EFFICIENT_LOADING"
    monkeypatch.delenv(name, raising=False)
    if before:
        monkeypatch.setenv(name, before)
    with loaded_whole():
        assert os.environ[name] == "false"
    assert os.environ.get(name) == before


def test_a_dummy_row_has_a_finite_divergence_however_unlikely_its_token_is() -> None:
    columns = {"ref_per_token_logps": torch.zeros(0, 1), "advantages": torch.zeros(0, 1)}
    rows = collate_rows(TurnBatch.of([], pad_id=0), columns, rows=2, pad_id=0, end_id=1)
    log_probs = torch.tensor([[-200.0, 0.0]] * 2, requires_grad=True)  # 0 is what the head gives padding
    difference = rows["ref_per_token_logps"] - log_probs
    loss = ((difference.exp() - difference - 1) * rows["tool_mask"]).sum()
    loss.backward()
    assert loss == 0 and torch.equal(log_probs.grad, torch.zeros(2, 2)) and rows["advantages"].eq(0).all()


def test_sub_chunks_of_dummies_have_two_columns_so_that_metrics_are_masked() -> None:
    columns = {"advantages": torch.zeros(0, 1), "target/kept": torch.zeros(0, 1, 3)}
    rows = collate_rows(TurnBatch.of([], pad_id=0), columns, rows=2, pad_id=0, end_id=1)
    part = select_and_trim(rows, torch.arange(2))
    assert {name: tuple(value.shape) for name, value in part.items() if not name.startswith("prompt")} == {
        **dict.fromkeys(["completion_ids", "completion_mask", "tool_mask", "advantages"], (2, 2)),
        "target/kept": (2, 2, 3),
    }


def test_a_sub_chunk_is_filled_to_the_rows_of_another_process_without_adding_tokens() -> None:
    columns = {"advantages": torch.zeros(0, 1)}
    rows = collate_rows(TurnBatch.of([], pad_id=0), columns, rows=3, pad_id=0, end_id=1)
    rows["tool_mask"] = torch.ones_like(rows["tool_mask"])
    filled = with_rows(rows, 5)
    assert {len(value) for value in filled.values()} == {5}
    assert filled["tool_mask"].sum(1).tolist() == [2, 2, 2, 0, 0] and rows["tool_mask"].sum() == 6


def test_metrics_of_processes_are_averaged_but_for_extremes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ProcessGroup(SimpleNamespace(process_index=0, num_processes=2))
    everywhere = [{"a": 1.0, "b/max": 1.0, "b/min": 1.0}, {"b/max": 3.0, "b/min": 3.0}]
    monkeypatch.setattr(world, "each", lambda own: everywhere)
    assert world.reduce({}) == {"a": 1.0, "b/max": 3.0, "b/min": 1.0}


def test_environments_down_elsewhere_end_the_play_here(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, factory=ToyEnvironment)
    inner = trainer.rollouts.player

    def player(*arguments: Any, **options: Any) -> Any:
        made = inner(*arguments, **options)
        made.agree = lambda number: 1  # "is any process down?" is what it asks first
        made.each = lambda own: [own, EnvironmentsDown("the shop of another process is closed")]
        return made

    trainer.rollouts.player = player
    with pytest.raises(EnvironmentsDown, match="another process"):
        trainer.train()
    assert (tmp_path / "checkpoint-0" / "trainer_state.json").is_file()
