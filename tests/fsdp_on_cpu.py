"""FSDP2 on CPU processes. accelerate ignores it there without a word; it asks only whether the launch is of several
GPUs, so that is what it is told. Call `shard` before anything of accelerate is made, and `assert_sharded` after."""

from __future__ import annotations

import os
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType

SETTINGS = {
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}


def shard(**settings: str) -> None:
    """Makes accelerate shard over CPU processes; further settings are environment variables."""
    os.environ.update(SETTINGS | settings)
    look_like_gpus()


def look_like_gpus() -> None:
    """Once a process: from now on accelerate takes CPU processes for GPUs where FSDP is asked for."""
    inner = PartialState.__init__

    def made(self: PartialState, *arguments: Any, **options: Any) -> None:
        inner(self, *arguments, **options)
        if "ACCELERATE_USE_FSDP" in os.environ and self.distributed_type is DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = made


def assert_sharded(trainer: Any) -> None:
    """So that a run with whole weights can't pass for a sharded one."""
    accelerator = trainer.accelerator
    assert accelerator.distributed_type is DistributedType.FSDP and accelerator.is_fsdp2, accelerator.distributed_type
    assert all(type(value).__name__ == "DTensor" for value in map(_data, trainer.model.parameters()))


def _data(parameter: Any) -> Any:
    return parameter.data
