"""Limits on the bytes of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

POOL = 512 << 20  # bytes of cached prompts on a CPU: those of some hundred turns with the shipped policies
CACHE = 128 << 20  # bytes of a batch on a CPU; larger batches are hardly faster
SHARE = 0.5  # of a GPU's free memory
SEVERAL = 4  # a GPU's limits hold this many of the longest rows, however little is free


@dataclass(frozen=True)
class CacheLimits:
    """Limits in bytes.

    Attributes:
        pool: of the cached prompts. A single longer prompt is cached all the same.
        batch: of the rows that are sampled at once.
        bounds_rollout: whether a rollout's rows are cut into batches by ``batch``; else they are sampled at once.
    """

    pool: int
    batch: int
    bounds_rollout: bool = False


def cache_limits(free: float | None, row: int, caches: int = 1) -> CacheLimits:
    """Returns the limits on a device: four fifths of a `SHARE` of its free memory for the pool, one for the batch, at
    least `SEVERAL` of the longest rows in each. On the CPU they are `POOL` and `CACHE`.

    Args:
        free: free bytes of the device, `None` for the CPU.
        row: bytes of the longest prompt and response.
        caches: number of caches that divide the share.
    """
    if free is None:
        return CacheLimits(POOL, CACHE)
    pool, batch = (int(SHARE / caches * part * max(free, 0.0)) for part in (0.8, 0.2))
    return CacheLimits(max(pool, SEVERAL * row), max(batch, SEVERAL * row), bounds_rollout=True)


def free_memory(device: torch.device) -> int | None:
    """Returns the free bytes of a GPU, including torch's own cache; `None` for other devices."""
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def token_bytes(config: Any, number_bytes: int) -> int:
    """Returns the bytes of a token's keys and values.

    Args:
        config: the model's text config.
        number_bytes: bytes of one number.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head * number_bytes
