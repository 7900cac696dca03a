"""Records that make a result traceable: checksums of code and weights, versions of packages, and the settings that
decide what a run computes, with the differences of two runs."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from alignopsd_trl.common.progress import cut

PACKAGES = ("alignopsd-trl", "trl", "transformers", "torch", "accelerate", "peft", "datasets", "numpy")
_SAMPLE = 2**20


def versions() -> dict[str, str | None]:
    """Returns the versions of `PACKAGES`, `None` for one that is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@cache
def code_checksum() -> str:
    """Returns the first 16 hex digits of the sha256 over this project's Python files; needs no repository."""
    from alignopsd_trl.environments import base

    digest = hashlib.sha256()
    for folder in (Path(__file__).parents[1], Path(base.__file__).parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def machine() -> dict[str, str | int]:
    import joblib
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    found = {"device": device, "cores": joblib.cpu_count(), "platform": platform.platform(terse=True)}
    return found | {"python": platform.python_version()}


def model_name(model: Any) -> str:
    """Returns a model's source: a hub id, a path, a shipped policy's name, or the class of one made in Python."""
    from alignopsd_trl.common.models import SHIPPED_MODELS

    given = str(getattr(model.config, "_name_or_path", "") or "")
    if not given:
        return f"{type(model).__name__} made in Python"
    return next((name for name, path in SHIPPED_MODELS.items() if Path(given) == path), given)


def weights_checksum(model: str) -> str:
    """Returns the checksum of a local folder: first 16 hex digits of the sha256 over name, size, first and last MiB of
    each weight file (all of it where a model is small). A hub id is its own checksum."""
    from alignopsd_trl.common.models import resolve_model

    folder = Path(resolve_model(model))
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as content:
            digest.update(content.read(_SAMPLE))
            content.seek(max(size - _SAMPLE, 0))
            digest.update(content.read(_SAMPLE))
    return digest.hexdigest()[:16]


_SHOWN = 6  # most differences in a message

FREE_ON_RESUME = frozenset(
    # where and how often the run writes or shows something
    "output_dir overwrite_output_dir resume_from_checkpoint plan plan_for gpu_gib debug run_name project "
    "trackio_space_id trackio_bucket_id trackio_static_space_id report_to "
    "logging_strategy logging_first_step logging_steps logging_nan_inf_filter "
    "log_level log_level_replica log_on_each_node disable_tqdm log_completions num_completions_to_print "
    "log_unique_prompts save_strategy save_steps save_rounds save_total_limit save_on_each_node save_only_model "
    "enable_jit_checkpoint trajectories_hub_repo push_to_hub hub_model_id hub_strategy hub_token hub_private_repo "
    "hub_always_push hub_revision licence "
    # how long the run lasts, and when it gives up
    "max_steps rounds num_train_epochs max_failed_share environment_time_limit ddp_timeout "
    # how the same arithmetic is spread over memory and processes
    "per_device_train_batch_size per_device_eval_batch_size tokens_per_forward "
    "share_prefixes skip_zero_advantage threads gradient_checkpointing gradient_checkpointing_kwargs "
    "activation_checkpointing activation_checkpointing_kwargs "
    "dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor dataloader_persistent_workers "
    "local_rank ddp_backend torch_empty_cache_steps vllm_gpu_memory_utilization vllm_server_host vllm_server_port "
    "vllm_server_base_url vllm_server_timeout vllm_group_port "
    "ds3_gather_for_generation".split()
)
"""Settings that a resumed run may change, because they do not affect earlier results."""

MEASURED = ("bf16",)
"""Settings that a preset may measure anew at each start; a resumed run keeps what its first session measured."""


def configuration_of(args: Any, tasks: Any, **facts: Any) -> dict[str, Any]:
    """Returns the facts that decide a run's results: the arguments, the tasks in their order, and other facts."""
    ids = tasks["task_id"] if hasattr(tasks, "__len__") and tasks is not None else []
    digest = hashlib.sha256("\x1f".join(map(str, ids)).encode()).hexdigest()[:16]
    return {**args.to_dict(), **facts, "tasks": f"{len(ids)} ({digest})"}


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], without: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Returns the settings that differ, each with its values before and now."""
    names = [name for name in {**before, **now} if name not in without]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def shown(changed: Mapping[str, tuple[Any, Any]]) -> str:
    parts = [f"{name} {cut(str(old), 60)} there, {cut(str(new), 60)} here" for name, (old, new) in changed.items()]
    more = [f"and {len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
    return "; ".join(parts[:_SHOWN] + more)
