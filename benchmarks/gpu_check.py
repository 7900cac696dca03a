"""Does this GPU train, and how fast: a round of GRPO and one of AlignOPSD after a warm-up, with random weights.

    python benchmarks/gpu_check.py --output gpu_check.json                     one GPU, 0.5B, vLLM colocated, bfloat16
    python benchmarks/gpu_check.py --shape qwen3-4b --lora 16 --output FILE    an adapter; --no_vllm: without vLLM
    python benchmarks/gpu_check.py --round sdar_51 --output FILE               the round of SDAR's issue 51
    python benchmarks/gpu_check.py --device cpu --shape tiny --output FILE      the same code on any machine

The first minute says whether this GPU runs the policy at all, in which precision, how fast it decodes without vLLM, and
about how long the rest takes. The whole takes minutes; ``--completion 512`` is the length of the paper's responses.
``--device cpu`` leaves out CUDA, vLLM and bfloat16, and nothing else; the peak is then the process's, and MFU is of the
measured matrix product.

No hub: the weights are random at a shape of Qwen2.5 or Qwen3, the tokenizer is the shipped one with as many words more
as the shape's vocabulary has, the environment is the embedded WebShop. Random policies never finish: all
episodes run to ``--turns`` and all responses to their limit, so the figures are an upper bound of what a round of that
size costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import ModelConfig, get_peft_config

from alignopsd_trl import AlignOPSDConfig, AlignOPSDTrainer
from alignopsd_trl.commands.launch.machine import Launch
from alignopsd_trl.commands.launch.memory import GIB, estimate, loading, published, sampler, shape_of
from alignopsd_trl.commands.launch.presets import BACKBONES, Backbone
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.environments.loading import load
from alignopsd_trl.methods import get_method
from alignopsd_trl.rollout.sampler import BatchSampler, Responses
from alignopsd_trl.sampling.loop import LoopSampler
from alignopsd_trl.scoring.packing import Packed
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.teacher_forcing import Padded
from alignopsd_trl.scoring.trl_scoring import PolicyScorer

SHAPES = {
    "tiny": Backbone("tiny", 0, 2, 64, 2 * 32, 0, 128, 2),
    "qwen3-tiny": Backbone("tiny/Qwen3-tiny", 0, 2, 64, 2 * 128, 0, 128, 2),
    **BACKBONES,
}
PEAKS = {  # dense bfloat16 FLOP/s of the makers' data sheets, by a part of the device's name; the first that fits
    **{"B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12},
    **{"L40S": 362e12, "L4": 121e12, "A10": 125e12, "RTX 4090": 165e12},
}
LIKE = {  # rounds that others publish; docs/performance.md has their figures
    "own": {},
    "sdar_51": {"shape": "3b", "environment": "webshop", "tasks": 16, "turns": 20, "completion": 512},
}
ROUNDS = ("align_opsd", "grpo", "align_opsd")  # the first one warms up
STEPS = 8  # decode steps of the first answer
WORK = ("rollout", "privileged_thinking", "scoring", "update")


def make_policy(options: argparse.Namespace, folder: Path) -> Any:
    """Saves random weights and a tokenizer with a word for each of the vocabulary's numbers."""
    config = published(SHAPES[options.shape])
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    tokenizer.add_tokens([f"<|{number}|>" for number in range(len(tokenizer), config.vocab_size)])
    config.vocab_size = max(config.vocab_size, len(tokenizer))
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=precision(options)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return config


def precision(options: argparse.Namespace) -> torch.dtype:
    return torch.bfloat16 if options.device == "cuda" else torch.float32


def recipe_model(options: argparse.Namespace) -> ModelConfig:
    """The flags of a recipe that load these weights: float32 where all are trained, as a recipe does."""
    dtype = "bfloat16" if options.lora and options.device == "cuda" else "float32"
    return ModelConfig(use_peft=options.lora > 0, lora_r=options.lora or 16, dtype=dtype)


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product on this device, the best of five."""
    size, best = (8192, 0.0) if device == "cuda" else (1024, 0.0)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(5):
        wait(device)
        began = time.perf_counter()
        left @ right
        wait(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def first_answer(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds of a forward and backward of 1,024 tokens and of a decode step of eight rows, with the policy's weights
    in this device's precision; prints them at once."""
    dtype = precision(options)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(options.device)
    ids = torch.arange(1024, device=options.device)[None] % model.config.vocab_size
    prompts, sampler = [[5 + row] * 64 for row in range(8)], LoopSampler(PrefixCache(model, 0), 1.0, STEPS, [])

    def seconds(work: Callable[[], Any]) -> float:
        work()  # kernels are made and memory is taken the first time
        wait(options.device)
        began = time.perf_counter()
        work()
        wait(options.device)
        return time.perf_counter() - began

    update = seconds(lambda: model(input_ids=ids, labels=ids).loss.backward())
    step = seconds(lambda: sampler.sample(prompts)) / STEPS
    print(f"{dtype}: forward and backward of 1,024 tokens {update:.3f} s, a decode step without vLLM {step:.4f} s")
    sampled = len(ROUNDS) * 2 * options.turns * options.completion * step
    if options.no_vllm or options.device == "cpu":
        print(f"sampling of the {len(ROUNDS)} rounds: about {sampled:.0f} s", flush=True)
    return {"update_seconds": update, "decode_step_seconds": step}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def chance(trajectory: list[Any], **columns: Any) -> list[float]:
    """A reward that tells siblings apart, so that a random policy has something to learn from."""
    return [float(sum(sum(turn.response_ids) for turn in one.turns) % 97) / 97 for one in trajectory]


def useful(batch: Padded | Packed) -> int:
    """Tokens of a scoring batch, without its padding."""
    return int((batch.segment >= 0).sum() if isinstance(batch, Packed) else batch.mask.sum())


class Counted:
    """A sampler whose tokens are counted; what it has from another counted one is not counted twice."""

    def __init__(self, meter: Meter, kind: str, inner: BatchSampler):
        self._meter, self._kind, self._inner = meter, kind, inner

    def respond(self, prompts: Any, until: Any = None) -> Responses:
        sampled = self._meter.tokens["sampled"]
        found = self._inner.respond(prompts, until)
        self._meter.tokens["sampled"] = sampled
        self._meter.tokens[self._kind] += sum(map(len, found.ids))
        return found


class Meter(TrainerCallback):
    """Seconds by phase and tokens by kind, round by round; changes the method between rounds."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.rounds: list[dict[str, Any]] = []
        self.tokens = {"sampled": 0, "thought": 0, "scored": 0, "updated": 0}

    def watch(self, trainer: AlignOPSDTrainer) -> None:
        self.trainer, sampler, thinker = trainer, trainer.backend.sampler, trainer.samplers.thinker
        trainer.backend.sampler = lambda *settings: Counted(self, "sampled", sampler(*settings))
        trainer.samplers.thinker = lambda *settings: Counted(self, "thought", thinker(*settings))

    @contextlib.contextmanager
    def counting_scores(self) -> Generator[None]:
        before = {name: getattr(PolicyScorer, name) for name in ("plain", "shared")}
        for name, inner in before.items():
            setattr(PolicyScorer, name, self._counted(inner))
        try:
            yield
        finally:
            for name, inner in before.items():
                setattr(PolicyScorer, name, inner)

    def _counted(self, inner: Callable) -> Callable:
        def scored(scorer: Any, *given: Any) -> Any:
            self.tokens["scored"] += sum(useful(one) for one in given if isinstance(one, (Padded, Packed)))
            return inner(scorer, *given)

        return scored

    def on_step_begin(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        self.trainer.method = get_method(ROUNDS[state.global_step])(args)
        self.tokens = dict.fromkeys(self.tokens, 0)
        self._before, self._began = dict(self.trainer.phases.total), time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        wait(args.device.type)
        print(f"round {state.global_step} of {len(ROUNDS)}: {time.perf_counter() - self._began:.1f} s", flush=True)
        total, rows = self.trainer.phases.total, self.trainer._buffered_inputs
        self.tokens["updated"] = sum(int(part["prompt_mask"].sum() + part["completion_mask"].sum()) for part in rows)
        self.rounds.append(
            {
                "method": ROUNDS[state.global_step - 1],
                "seconds": time.perf_counter() - self._began,
                "phases": {name: value - self._before.get(name, 0.0) for name, value in total.items()},
                "tokens": dict(self.tokens),
                "turns": sum(int(part["tool_mask"].any(1).sum()) for part in rows),
                "rows": [length for part in rows for length in row_lengths(part)],
            }
        )


def row_lengths(part: Any) -> list[tuple[int, int]]:
    """Tokens of each row of the update, and those of its response."""
    responses = part["completion_mask"].sum(1)
    return list(zip((part["prompt_mask"].sum(1) + responses).tolist(), responses.tolist(), strict=True))


def model_flop(config: Any, parameters: int, rows: list[tuple[int, int]], trains_all: bool) -> float:
    """FLOP of an update by the model alone, without what checkpointing computes again.

    A token passes each weight of the layers once: 2 FLOP forward, 2 backward to the activations, 2 more to the weights
    if they are trained. The head does so on response tokens. Causal attention of a row of T tokens is 2 T^2 FLOP a
    query channel and layer forward, twice that backward. An adapter's own FLOP, below a hundredth, are left out.
    """
    head = config.vocab_size * config.hidden_size
    layers = parameters - head * (1 if config.tie_word_embeddings else 2)
    tokens, responses, squares = (
        sum(one for one, _ in rows),
        sum(one for _, one in rows),
        sum(one**2 for one, _ in rows),
    )
    channels = config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return (6 if trains_all else 4) * (layers * tokens + head * responses) + 6 * channels * squares


def comparable(measured: dict[str, Any], flop: float, flop_rate: float) -> dict[str, float]:
    """What others publish of a round; training is the update alone, as in their figures."""
    seconds, tokens = measured["phases"], measured["tokens"]
    return {
        "seconds_a_round": measured["seconds"],
        "generated_tokens_per_second": tokens["sampled"] / seconds["rollout"],
        "trained_tokens_per_second": tokens["updated"] / seconds["update"],
        "tokens_a_round": tokens["updated"],
        "mfu": flop / seconds["update"] / flop_rate,
    }


def make_trainer(options: argparse.Namespace, folder: Path, meter: Meter) -> AlignOPSDTrainer:
    gpu, tiny = options.device == "cuda", "tiny" in options.shape
    suite = load(options.environment or ("webshop_tiny" if tiny else "webshop"))
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": options.sleep}
    sampling, model = vllm if gpu and not options.no_vllm else {}, recipe_model(options)
    config = AlignOPSDConfig(
        str(folder / "run"),
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=True,
        method="align_opsd",
        per_device_train_batch_size=8 * options.tasks,
        max_steps=len(ROUNDS),
        max_turns=options.turns,
        max_prompt_length=4096 if options.environment or not tiny else 1024,
        model_init_kwargs={"dtype": model.dtype},
        max_completion_length=options.completion,
        learning_rate=1e-6,
        beta=0.01,
        top_k=0,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        save_trajectories=False,
        disable_tqdm=True,
        **sampling,
    )
    trainer = AlignOPSDTrainer(
        str(folder),
        config,
        environment_factory=suite.factory,
        train_dataset=suite.tasks("train"),
        skill_bank=suite.skill_bank or suite.name,
        peft_config=get_peft_config(model),
        encoder="lexical",
        reward_funcs=chance,
        callbacks=[meter],
    )
    meter.watch(trainer)
    return trainer


def rates(measured: dict[str, Any], parameters: int, matmul: float) -> dict[str, dict[str, float]]:
    """Tokens/s and the share of the matmul rate, by phase: 2 FLOP a parameter and token, 8 in the update (forward, the
    same again for the checkpoints, backward). Attention's own FLOP are not counted; nor is a sampled token's prompt."""
    seconds, tokens, found = measured["phases"], measured["tokens"], {}
    kinds = (("sampled", 2), ("thought", 2), ("scored", 2), ("updated", 8))
    for phase, (kind, work) in zip(WORK, kinds, strict=True):
        if tokens[kind] and seconds.get(phase):
            speed = tokens[kind] / seconds[phase]
            found[phase] = {"tokens_per_second": speed, "share_of_matmul": speed * work * parameters / matmul}
    return found


def peak(device: str) -> float:
    """GiB: of the GPU's allocator, or of the whole process on CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def measure(options: argparse.Namespace) -> dict[str, Any]:
    gpu, meter = options.device == "cuda", Meter()
    name = torch.cuda.get_device_name(0) if gpu else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        config = make_policy(options, Path(folder))
        first = first_answer(options, Path(folder))
        matmul = matmul_rate(options.device, precision(options))
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        trainer = make_trainer(options, Path(folder), meter)
        with meter.counting_scores():
            trainer.train()
        log, args = trainer.state.log_history, trainer.args
    shape, loaded = shape_of(options.shape, config), loading(config, recipe_model(options), args, Launch())
    total = torch.cuda.get_device_properties(0).total_memory / GIB if gpu else None
    engine = sampler(shape, args, total, loaded.served_bytes) if gpu else None
    logged = {
        key: value for entry in log for key, value in entry.items() if key.startswith(("sampling/", "self_check/"))
    }
    sheet = next((rate for part, rate in PEAKS.items() if part in name), None)
    for one in meter.rounds:
        flop = model_flop(config, shape.parameters, one.pop("rows"), not options.lora)
        one["rates"] = rates(one, shape.parameters, matmul)
        one["comparable"] = comparable(one, flop, sheet or matmul)
    return {
        "device": name,
        "torch": torch.__version__,
        "options": {name: str(value) for name, value in vars(options).items()},
        "shape": options.shape,
        "parameters": shape.parameters,
        "matmul_flops": matmul,
        "mfu_of": {"flops": sheet or matmul, "source": "data sheet" if sheet else "the measured matrix product"},
        "first_answer": first,
        "rounds": meter.rounds,
        "ratio": meter.rounds[2]["seconds"] / meter.rounds[1]["seconds"],
        "peak_gib": peak(options.device),
        "used_gib": total - torch.cuda.mem_get_info()[0] / GIB if gpu else None,  # vLLM's and CUDA's own with it
        "estimate_gib": estimate(shape, args, Launch(), loaded, gpu_gib=total).peak,
        "sampler_gib": engine.share if engine else 0.0,
        "agreement": logged,
    }


def table(found: dict[str, Any]) -> str:
    lines = [f"{found['device']}, {found['shape']}, matmul {found['matmul_flops'] / 1e12:.2f} TFLOP/s"]
    lines.append(f"MFU is of {found['mfu_of']['flops'] / 1e12:.2f} TFLOP/s, {found['mfu_of']['source']}")
    for number, one in enumerate(found["rounds"]):
        warm = " (warm-up)" if number == 0 else ""
        lines.append(f"{one['method']}{warm}: {one['seconds']:.1f} s, {one['turns']} turns")
        same = one["comparable"]
        lines.append(
            f"  generation {same['generated_tokens_per_second']:.0f} tokens/s, training "
            f"{same['trained_tokens_per_second']:.0f} tokens/s of {same['tokens_a_round']:,}, MFU {same['mfu']:.1%}"
        )
        for phase, seconds in sorted(one["phases"].items(), key=lambda item: -item[1]):
            rate = one["rates"].get(phase)
            shown = (
                f"{rate['tokens_per_second']:10.0f} tokens/s {rate['share_of_matmul']:7.1%} of matmul" if rate else ""
            )
            lines.append(f"  {phase:<22}{seconds:8.2f} s {shown}")
    lines.append(f"AlignOPSD / GRPO: {found['ratio']:.2f}")
    lines.append(
        f"peak {found['peak_gib']:.1f} GiB; --plan estimates {found['estimate_gib']:.1f} for training and "
        f"{found['sampler_gib']:.1f} for the sampler"
    )
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in sorted(found["agreement"].items()))])


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--round", choices=LIKE, default="own", help="the size of a published round")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train an adapter; 0: all weights")
    parser.add_argument("--environment", help="by name; None: the embedded WebShop")
    parser.add_argument("--tasks", type=int, default=2, help="groups of 8 episodes a round")
    parser.add_argument("--turns", type=int, default=5, help="turns an episode")
    parser.add_argument("--completion", type=int, default=64, help="tokens of a response")
    parser.add_argument("--no_vllm", action="store_true", help="sample without vLLM")
    parser.add_argument("--sleep", action="store_true", help="vLLM's sleep mode")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.set_defaults(**LIKE[parser.parse_known_args(argv)[0].round])
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is visible; --device cpu --shape tiny runs the same code")
    found = measure(options)
    options.output.write_text(json.dumps(found, indent=2), encoding="utf-8")
    print(table(found))
    return found


if __name__ == "__main__":
    main()
