"""How many bytes the keys and values of prompts may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

POOL = 512 << 20  # bytes of keys and values that are remembered: those of some hundred turns with the shipped policies
CACHE = 128 << 20  # bytes of keys and values of a batch, beyond which more hardly make it faster
SEVERAL = 4  # of the longest rows have room on a GPU, however little is free


@dataclass(frozen=True)
class Room:
    """Bytes that keys and values may take.

    Attributes:
        pool: of prompts that are remembered; a prompt that is longer is remembered all the same.
        batch: of the rows that are sampled at once.
        bounds_rollout: whether a rollout's rows are cut into batches too; else they are sampled at once.
    """

    pool: int
    batch: int
    bounds_rollout: bool = False


def room(free: float | None, share: float, row: int) -> Room:
    """How much room there is on a device: a share of its free memory, four fifths of it for the pool, but `SEVERAL` of
    the longest rows in each.

    Args:
        free: bytes of the device; `None` on the CPU: `POOL` and `CACHE`.
        row: bytes of the longest prompt and response.
    """
    if free is None:
        return Room(POOL, CACHE)
    pool, batch = (int(share * part * max(free, 0.0)) for part in (0.8, 0.2))
    return Room(max(pool, SEVERAL * row), max(batch, SEVERAL * row), bounds_rollout=True)


def token_bytes(config: Any, number_bytes: int) -> int:
    """Bytes of a token's keys and values.

    Args:
        config: the model's text config.
        number_bytes: of one key or value.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head * number_bytes
