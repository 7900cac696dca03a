"""Chooses a trainer's decoding back end. To add one, write a `sampling.backend.Backend` and choose it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.experimental.server_backend import ServerBackend, teacher_servers
from alignopsd_trl.sampling.backend import Backend
from alignopsd_trl.trl_compat.own_loop import OwnBackend
from alignopsd_trl.trl_compat.sampling import ColocatedBackend, EngineBackend

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat import Trainer


def backend_of(trainer: Trainer, processes: ProcessGroup) -> Backend:
    """Makes the back end of the configuration. A collective with servers."""
    if not trainer.use_vllm:
        return OwnBackend(trainer)
    if not trainer.args.continuous_play:
        return EngineBackend(trainer)
    served = trainer.vllm_mode == "server"
    backend = ServerBackend.joined(trainer, processes) if served else ColocatedBackend(trainer, processes)
    backend.teacher = teacher_servers(trainer, processes)
    return backend
