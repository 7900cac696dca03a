"""Shipped weights are stored as float16 and loaded as float32: half the size, and the same figures.

    python -m assets.tiny_policies.storage FOLDER

A weight of these policies changes by 5e-4 of itself at most. ``config.json`` keeps saying float32, which is what
``from_pretrained`` then loads; training and evaluation never compute in half precision because of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def store_in_half(folder: str | Path) -> None:
    """Writes a policy's ``model.safetensors`` anew, with its floating-point tensors as float16.

    Raises:
        ValueError: if a weight does not fit into float16.
    """
    file = Path(folder) / "model.safetensors"
    halves = {name: value.half() if value.is_floating_point() else value for name, value in load_file(file).items()}
    if wrong := [name for name, value in halves.items() if not torch.isfinite(value).all()]:
        raise ValueError(f"{file}: {wrong[0]} does not fit into float16; store this policy as it is")
    save_file(halves, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors writes it for its owner alone, and it is to be packed


if __name__ == "__main__":
    for one in sys.argv[1:]:
        store_in_half(one)
