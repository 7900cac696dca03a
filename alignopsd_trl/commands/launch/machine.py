"""The number of processes of a run, and how the policy is sharded over them: read without starting anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from alignopsd_trl.commands.launch.presets import divisors
from alignopsd_trl.commands.launch.values import read_yaml, shipped_or
from alignopsd_trl.config import AlignOPSDConfig

STRATEGIES = ("one process", "DDP", "FSDP2", "ZeRO-2", "ZeRO-3")


@dataclass(frozen=True)
class Launch:
    """A launch as ``accelerate launch`` or ``torchrun`` makes it."""

    processes: int = 1  # of the whole run, one a GPU
    nodes: int = 1
    strategy: str = "one process"  # one of `STRATEGIES`, or the name of one that the trainer does not support
    loads_once: bool = False  # one process of a node reads the weights and sends them to the others

    @property
    def weight_shards(self) -> int:
        return self.processes if self.strategy in ("FSDP2", "ZeRO-3") else 1

    @property
    def gradient_shards(self) -> int:
        return self.processes if self.strategy in ("FSDP2", "ZeRO-2", "ZeRO-3") else 1

    @property
    def processes_per_node(self) -> int:
        return max(self.processes // self.nodes, 1)

    def __str__(self) -> str:
        if self.processes == 1:
            return "one process"
        where = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.processes} processes{where}, {self.strategy}"


def launched(environment: Mapping[str, str] = os.environ) -> Launch:
    """Returns the launch that this process is part of, from the variables that launchers set."""
    processes = int(environment.get("WORLD_SIZE", "1"))
    nodes = max(processes // max(int(environment.get("LOCAL_WORLD_SIZE", str(processes))), 1), 1)

    def says(name: str) -> bool:
        return environment.get(name, "false").lower() in ("true", "1", "yes")

    if says("ACCELERATE_USE_FSDP"):
        version = environment.get("FSDP_VERSION", "1")
        return Launch(processes, nodes, f"FSDP{version}", says("FSDP_CPU_RAM_EFFICIENT_LOADING"))
    if says("ACCELERATE_USE_DEEPSPEED"):
        stage = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
        return Launch(processes, nodes, f"ZeRO-{stage}", stage == "3")
    return Launch(processes, nodes, "DDP" if processes > 1 else "one process")


_SECTIONS = {
    "FSDP": ("fsdp_config", "ACCELERATE_USE_FSDP", ""),
    "DEEPSPEED": ("deepspeed_config", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DEEPSPEED_"),
}
"""Kind of distribution -> its section in accelerate's file, the variable that names it, the prefix of the others."""


def from_file(path: str | Path) -> Launch:
    """Returns the launch that an accelerate configuration describes: a path, or the name of a shipped one."""
    content = read_yaml(shipped_or(str(path)), "plan_for=", "num_processes: 8; alignopsd --files lists shipped ones")
    if "num_processes" not in content:
        raise ValueError(
            f"plan_for={str(path)!r} is no accelerate configuration (it has no num_processes); see recipes/accelerate"
        )
    processes = int(content["num_processes"])
    found = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes // int(content.get("num_machines", 1))}
    if section := _SECTIONS.get(str(content.get("distributed_type")).upper()):
        name, used, prefix = section
        found[used] = True
        found |= {f"{prefix}{option.upper()}": value for option, value in (content.get(name) or {}).items()}
    return launched({name: str(value) for name, value in found.items()})


def processes_of(launcher: Sequence[str]) -> int:
    """Returns the number of processes that a launcher's command starts on this machine: its own argument, else the
    value in its configuration file, else one."""
    words = [word for argument in launcher for word in argument.split("=", 1)]
    for name in ("--num_processes", "--nproc_per_node", "--nproc-per-node"):
        if name in words[:-1] and words[words.index(name) + 1].isdigit():
            return int(words[words.index(name) + 1])
    if "--config_file" in words[:-1]:
        return from_file(words[words.index("--config_file") + 1]).processes_per_node
    return 1


def check_launch(launch: Launch, args: AlignOPSDConfig, installed: bool = True) -> None:
    """Raises `ValueError` for settings that would fail or hang only after minutes of loading weights, and `ImportError`
    if the run uses vLLM and it is not ``installed``, which a plan for another machine does not ask."""
    if launch.strategy not in STRATEGIES:
        raise ValueError(
            f"the launch spreads the policy by {launch.strategy}, which is not proven with this trainer; proven are "
            f"{', '.join(STRATEGIES)}: take one of recipes/accelerate (FSDP: set fsdp_version: 2)"
        )
    if not args.use_vllm:
        return
    if installed and find_spec("vllm") is None:
        raise ImportError(
            "use_vllm=True, but vLLM is not installed; pip install 'alignopsd-trl[vllm]', or leave "
            "--use_vllm out and sample with transformers"
        )
    parallel, here = args.vllm_tensor_parallel_size, launch.processes_per_node
    if args.vllm_mode == "colocate" and here % parallel:
        raise ValueError(
            f"vllm_tensor_parallel_size={parallel} must divide the {here} processes of a node: an engine is shared by "
            f"neighbours. Use one of {divisors(here)}"
        )


def usable_device(asked: str | None) -> str:
    """Returns the requested device; by default the GPU, or the CPU if there is none."""
    if asked is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=asked).item()  # which the device meta can't
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"--device {asked}: {reason}; leave it out for what there is") from error
    return asked
