"""Shapes of random models of the proven types, and a counter of the tokens that go through one."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

SHAPE = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}


class Counted:
    """How many tokens go through a model."""

    def __init__(self, model: torch.nn.Module):
        self.tokens = 0
        model.base_model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: torch.nn.Module, arguments: tuple, options: dict) -> None:
        self.tokens += options["input_ids"].numel()
