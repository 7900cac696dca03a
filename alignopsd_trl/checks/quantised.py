"""Checks a policy with quantised weights, of which 4 bits of bitsandbytes under an adapter (QLoRA) are tested."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from alignopsd_trl.common.options import as_mapping
from alignopsd_trl.config import AlignOPSDConfig


def check_quantised(
    quantization: Any, args: AlignOPSDConfig, adapter: bool, elsewhere: bool = False, processes: int | None = None
) -> None:
    """Raises `ValueError` for quantised weights that no test has trained; names what to set instead. ``quantization``
    is transformers' config of them, ``elsewhere`` looks for no packages, ``processes`` are a planned launch's."""
    found = quantization or as_mapping(args.model_init_kwargs).get("quantization_config")
    if found is None:
        return
    says = found.get if isinstance(found, dict) else lambda name: getattr(found, name, None)
    if not says("load_in_4bit"):
        kind, why = f"quantization_config of {says('quant_method')}", "no test has trained such weights"
        if says("load_in_8bit"):
            kind, why = "load_in_8bit=True", "a row's score would depend on the rows beside it, by their outliers"
        raise ValueError(f"{kind} is not supported: {why}; use load_in_4bit=True, or whole weights")
    problem, processes = None, processes or args.world_size
    if not adapter:
        problem = "no weight is left to train; pass a peft_config (--use_peft)"
    elif args.use_vllm:
        problem = (
            "a push to use_vllm=True would merge the adapter into the 4 bits and take it out again, which moves the "
            "base each time; use use_vllm=False, or --dtype bfloat16 in place of 4 bits"
        )
    elif processes > 1:
        problem = f"shown on one process, not on {processes}; use --dtype bfloat16 in place of 4 bits"
    elif not elsewhere and find_spec("bitsandbytes") is None:
        problem = "bitsandbytes is not installed; pip install 'alignopsd-trl[quantized]'"
    if problem:
        raise ValueError(f"load_in_4bit=True: {problem}")


def settle_quantised(model: Any) -> None:
    """Makes a policy with 4-bit weights compute the same when fresh, evaluated or resumed. TRL's adapter on it is
    bfloat16, which loses small steps, and float32 once it is loaded again: here it is float32. On a CPU bitsandbytes
    would pack weights anew in the first evaluation, which rounds their scales for good and fails for short rows.
    """
    if not getattr(model, "is_loaded_in_4bit", False):
        return
    for parameter in filter(lambda one: one.requires_grad, model.parameters()):
        parameter.data = parameter.data.float()
    for module in filter(lambda one: hasattr(one, "support_avx512bf16_for_cpu"), model.modules()):
        module.support_avx512bf16_for_cpu = False
