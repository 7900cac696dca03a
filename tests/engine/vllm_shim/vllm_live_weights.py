"""A vLLM plugin, loaded in each of its processes: linear layers keep the weights that a training run pushes to them."""

import torch
import vllm.model_executor.layers.utils as layers


def _plain(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


def keep() -> None:
    layers.dispatch_cpu_unquantized_gemm = _plain
