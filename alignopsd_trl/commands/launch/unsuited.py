"""Names settings that do not suit a model's size: a laptop's beside billions, an adapter's rate for all weights."""

from __future__ import annotations

from collections.abc import Iterator

from trl import ModelConfig

from alignopsd_trl.commands.launch.model_files import Thinking
from alignopsd_trl.common.options import as_mapping
from alignopsd_trl.config import AlignOPSDConfig

BILLIONS = 1e9  # parameters from which a laptop's settings are a mistake
SMALL = 3e8  # parameters up to which policies of this project learnt at rates of 1e-4 and more
FULL, ADAPTED = 1e-6, 1e-5
"""Learning rates of all weights and of an adapter in reinforcement learning with models of billions, by "LoRA Without
Regret" (Schulman et al., 2025) and TRL's page of that name: an adapter wants about ten times as much."""
NEAR = 5.0  # a rate within so many times of the usual one is a choice
THOUGHT = 1024  # tokens that a thinking model's turn may need; fewer cut its thoughts


def unsuited(parameters: int, args: AlignOPSDConfig, model: ModelConfig, adapts: bool, thinks: Thinking) -> str:
    """Returns what does not suit a model of so many parameters, with the remedies; empty if all does.

    Args:
        adapts: whether an adapter is trained, a new one or the policy's own.
        thinks: whether the model thinks.
    """
    found = [*_laptop(args, model), *_rate(parameters, args.learning_rate, adapts)] if parameters > SMALL else []
    found = found if parameters >= BILLIONS else [one for one in found if one.startswith("learning_rate")]
    off = as_mapping(args.chat_template_kwargs).get("enable_thinking") is False
    length = args.max_completion_length
    if length < THOUGHT and thinks != "no" and not off:
        choice = ", or --chat_template_kwargs '{\"enable_thinking\": false}'" if thinks == "by choice" else ""
        found.append(
            f"max_completion_length={length} cuts the thoughts of a model that thinks: take {2 * THOUGHT} or more"
            f"{choice}"
        )
    return "; ".join(found)


def _laptop(args: AlignOPSDConfig, model: ModelConfig) -> Iterator[str]:
    if args.use_cpu:
        yield "use_cpu=True is a laptop's: --use_cpu False"
    if not args.bf16 and not args.fp16:
        yield "bf16=False computes in float32: --bf16 True"
    if not args.gradient_checkpointing:
        yield "gradient_checkpointing=False keeps all activations: --gradient_checkpointing True"
    if model.use_peft and model.dtype in (None, "float32") and not model.load_in_4bit:
        yield f"dtype={model.dtype} keeps the frozen weights in float32: --dtype bfloat16"


def _rate(parameters: int, rate: float, adapts: bool) -> Iterator[str]:
    usual, whose = (ADAPTED, "an adapter's") if adapts else (FULL, "a full model's")
    if adapts and rate < usual / NEAR:
        yield f"learning_rate={rate:g} is a full model's, and an adapter wants about ten times as much: {usual:g}"
    elif rate > usual * NEAR * (1 if parameters >= BILLIONS else NEAR):
        told = "a small model's" if adapts else "an adapter's or a small model's"
        yield f"learning_rate={rate:g} is {told}; {whose} is {usual:g}"
