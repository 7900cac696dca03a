"""Which model trains on one GPU, and with which flags: the table of docs/launch.md.

    python benchmarks/one_gpu.py                  Markdown, from the estimate of --plan; no GPU, no weights

Each cell is the first of `STEPS` with which `alignopsd train webshop_3b` fits, vLLM colocated: its engine, awake,
beside what training keeps, and training beside the engine, which may sleep.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.launch.machine import Launch
from alignopsd_trl.commands.launch.memory_plan import memory_facts
from alignopsd_trl.commands.launch.presets import BACKBONES

GPUS = (24, 48, 80, 141)
KINDS = {"all weights": (), "LoRA": ("--use_peft", "--dtype", "bfloat16")}
SLEEPING = ("--vllm_enable_sleep_mode",)
SMALL = (*SLEEPING, "--tokens_per_forward", "4608")
STEPS = ((), SLEEPING, SMALL, (*SMALL, "--beta", "0"))
SHARES = ("0.3", "0.4", "0.5", "0.6", "0.7", "0.8")
COMMON = ("--use_vllm", "--vllm_mode", "colocate", "--encoder", "lexical")


@cache
def parsed(flags: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """The recipe's arguments, which are the same for every model and GPU."""
    return parse("webshop_3b", ["--plan", *flags])


def fits(model: str, gpu: int, flags: tuple[str, ...]) -> bool:
    """Whether the plan of a recipe says so."""
    recipe, args, chosen = parsed(flags)
    recipe, chosen = replace(recipe, gpu_gib=gpu), replace(chosen, model_name_or_path=model)
    try:
        return "DOES NOT FIT" not in memory_facts(recipe, args, chosen, Launch(), rows=0)  # no tokens' logits are kept
    except ValueError:  # the sampler's share can't hold its weights
        return False


def flags_for(model: str, gpu: int, kind: str) -> tuple[str, ...] | None:
    """The flags of the first step that fits, with the smallest share for vLLM; `None` if none does."""
    for step in STEPS:
        for share in SHARES:
            own = () if share == SHARES[0] else ("--vllm_gpu_memory_utilization", share)
            if fits(model, gpu, (*COMMON, *KINDS[kind], *step, *own)):
                return (*step, *own)
    return None


def table() -> str:
    lines = ["| | " + " | ".join(f"{gpu} GiB" for gpu in GPUS) + " |", "| --- " * (len(GPUS) + 1) + "|"]
    for shape in BACKBONES.values():
        name = shape.hub_id.partition("/")[2].removesuffix("-Instruct")
        for kind in KINDS:
            cells = [_cell(flags_for(shape.hub_id, gpu, kind)) for gpu in GPUS]
            lines.append(f"| {name}, {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(flags: tuple[str, ...] | None) -> str:
    if flags is None:
        return "no"
    names = {SLEEPING: "sleep", SMALL: "sleep, small", STEPS[3]: "sleep, small, `--beta 0`", (): ""}
    share = flags[-1] if "--vllm_gpu_memory_utilization" in flags else ""
    step = flags[:-2] if share else flags
    return ", ".join(part for part in (names[step], f"share {share}" if share else "") if part) or "as it is"


if __name__ == "__main__":
    print(table())
