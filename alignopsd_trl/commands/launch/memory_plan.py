"""A recipe's memory on one GPU: what a plan says of it, and whether it fits."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

from trl import ModelConfig

from alignopsd_trl.commands.launch import memory
from alignopsd_trl.commands.launch.arguments import RecipeArguments
from alignopsd_trl.commands.launch.machine import Launch
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import get_method
from alignopsd_trl.scoring.prefix_cache import SHARE

FULL = 0.95  # of a GPU
ROOM = 0.9  # of a GPU, where settings are chosen: a plan counts no fragments and no context of CUDA's
PAYS = 4  # full-length responses at once with which vLLM pays


@dataclass(frozen=True)
class PlannedMemory:
    """The memory of a run on a GPU of ``gpu`` GiB: of training, and of a colocated sampler, if there is one.

    ``sampling`` and ``training`` are the GiB at once while vLLM samples and while the policy learns.
    """

    run: memory.RunMemory
    engine: memory.SamplerMemory | None
    gpu: float
    sampling: float
    training: float
    share: float  # ``vllm_gpu_memory_utilization``

    @property
    def most(self) -> float:
        return max(self.sampling, self.training)

    @property
    def problem(self) -> str:
        """Why it does not fit; empty if it does."""
        if self.most > FULL * self.gpu:
            when = "while vLLM samples" if self.most == self.sampling else "in training"
            return f"{self.most:.1f} GiB {when}, on a GPU of {self.gpu:.0f}; see docs/launch.md for what to set"
        if self.engine is not None and self.engine.sequences == 0:
            return f"vllm_gpu_memory_utilization={self.share} leaves no room for one full-length response; raise it"
        return ""


def planned_memory(
    shape: memory.Backbone,
    loaded: memory.Loading,
    recipe: RecipeArguments,
    args: AlignOPSDConfig,
    launch: Launch,
    rows: int,
) -> PlannedMemory:
    """Estimates the memory of a run of a model of this shape, loaded so, where a process's round has so many ``rows``
    at most."""
    method, gpu = get_method(args.method)(args), memory.gpu_memory(recipe.gpu_gib)
    run = memory.estimate(
        shape,
        args,
        launch,
        loaded,
        teaches=method.needs_teacher or bool(args.privileged_siblings),
        encoder=memory.encoder_bytes(recipe.encoder if method.needs_encoder else None),
        gpu_gib=None if args.use_cpu else gpu,
        kept_logits=rows * args.max_completion_length * method.kept_logits,
    )
    engine = memory.sampler(shape, args, gpu, loaded.served_bytes)
    share = 0.0 if engine is None else engine.share
    training = run.peak + (0.0 if args.vllm_enable_sleep_mode else share)
    return PlannedMemory(run, engine, gpu, run.standing + share, training, args.vllm_gpu_memory_utilization)


def memory_facts(
    recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig, launch: Launch, rows: int
) -> dict[str, str]:
    """Returns the plan's lines about memory: on a GPU, of a colocated sampler, on the host, on disk, where a process's
    round has so many ``rows`` at most. Raises `ValueError` if the sampler's share can't hold its weights; if the
    weights can't be loaded or counted so."""
    name, remote = str(model.model_name_or_path), args.trust_remote_code
    shape = memory.backbone(name, remote)
    loaded = memory.loading(memory.config_of(name, remote), model, args, launch)
    found = planned_memory(shape, loaded, recipe, args, launch, rows)
    run, engine = found.run, found.engine
    parts = ", ".join(f"{name} {value:.1f}" for name, value in run.training.items() if value >= 0.05)
    facts = {"memory per GPU, estimate": f"{run.peak:.1f} GiB for training, at its peak ({parts})"}
    counted = memory.encoder_bytes(recipe.encoder) is not None or not get_method(args.method)(args).needs_encoder
    unknown = "" if counted else f"the encoder {recipe.encoder!r}: its size can't be told without loading it"
    if uncounted := "; ".join(filter(None, (unknown, shape.uncounted))):
        facts["not counted"] = uncounted
    asked = copy(args)  # an engine in the tenths of the GPU that training leaves
    asked.use_vllm, asked.vllm_mode = True, "colocate"
    asked.vllm_gpu_memory_utilization = math.floor(10 * (ROOM - run.standing / found.gpu)) / 10
    other = memory.sampler(shape, asked, found.gpu, loaded.served_bytes)
    beside = not model.load_in_4bit and other is not None and other.sequences >= PAYS
    facts["sampler"] = _sampler_fact(args, engine, found.gpu, beside)
    if engine is not None:
        asleep = "asleep" if args.vllm_enable_sleep_mode else "beside it"
        at_once = f"{found.sampling:.1f} GiB while vLLM samples, {found.training:.1f} in training, vLLM {asleep}"
        facts["one GPU at once"] = at_once
    if problem := found.problem:
        facts["DOES NOT FIT"] = problem
    facts["host memory per node, while loading"] = f"{run.host:.0f} GiB"
    facts["disk"] = f"{run.checkpoint:.1f} GiB a checkpoint, {run.kept:.1f} GiB for all that are kept"
    return facts


def _sampler_fact(args: AlignOPSDConfig, engine: memory.SamplerMemory | None, gpu: float, beside: bool) -> str:
    """Returns the line about the sampler's place and, of vLLM, its memory; advises vLLM if there is room ``beside``."""
    if engine is None and args.use_vllm:
        return "on the server's GPUs"
    if engine is None:
        slow = SLOW_SAMPLING + ("; take --use_vllm --vllm_mode colocate" if beside else "")
        return "the trainer's own weights" + ("" if args.use_cpu else f"; {slow}")
    if engine.weights > engine.share:
        raise ValueError(
            f"vllm_gpu_memory_utilization={args.vllm_gpu_memory_utilization} of {gpu:.0f} GiB can't hold the "
            f"sampler's weights ({engine.weights:.1f} GiB); raise it, or vllm_tensor_parallel_size"
        )
    return (
        f"{engine.share:.1f} GiB of {gpu:.0f} (weights {engine.weights:.1f}, buffers {engine.buffers:.1f}, cache "
        f"{engine.cache:.1f}: {engine.sequences} full-length responses at once, {engine.most} at most)"
    )


SLOW_SAMPLING = f"without vLLM each token waits for small kernels; keys and values: {SHARE:.0%} of what is free"
"""What is said of a GPU that samples without vLLM."""
