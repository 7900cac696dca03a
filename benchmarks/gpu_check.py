"""Does this GPU train, and how fast: a round of GRPO and one of AlignOPSD after a warm-up, with random weights.

    python benchmarks/gpu_check.py --output gpu_check.json                     one GPU, 0.5B, vLLM colocated, bfloat16
    python benchmarks/gpu_check.py --shape 3b --no_vllm --output gpu_check.json
    python benchmarks/gpu_check.py --device cpu --shape tiny --output FILE      the same code on any machine

The first minute says whether this GPU runs the policy at all, in which precision, how fast it decodes without vLLM, and
about how long the rest takes. The whole takes minutes; ``--completion 512`` is the length of the paper's responses.

No hub: the weights are random at a shape of Qwen2.5, the tokenizer is the shipped one with as many words more as the
shape's vocabulary has, the environment is the embedded WebShop. Random policies never finish: all episodes run to
``--turns`` and all responses to their limit, so the figures are an upper bound of what a round of that size costs.
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
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, TrainerCallback

from alignopsd_trl import AlignOPSDConfig, AlignOPSDTrainer
from alignopsd_trl.environments.loading import load
from alignopsd_trl.launch.machine import Launch
from alignopsd_trl.launch.memory import GIB, estimate, sampler, shape_of
from alignopsd_trl.methods import get_method
from alignopsd_trl.models import resolve_model
from alignopsd_trl.rollout import BatchSampler, Responses
from alignopsd_trl.sampling.loop import LoopSampler
from alignopsd_trl.scoring.packing import Packed
from alignopsd_trl.scoring.teacher_forcing import Padded
from alignopsd_trl.trl_compat.scoring import PolicyScorer

SHAPES = {  # hidden, layers, heads, key-value heads, intermediate, vocabulary, tied; from the published config files
    "tiny": (64, 2, 2, 1, 128, 0, True),
    "0.5b": (896, 24, 14, 2, 4864, 151_936, True),
    "1.5b": (1536, 28, 12, 2, 8960, 151_936, True),
    "3b": (2048, 36, 16, 2, 11008, 151_936, True),
}
ROUNDS = ("align_opsd", "grpo", "align_opsd")  # the first one warms up
STEPS = 8  # decode steps of the first answer
WORK = ("rollout", "privileged_thinking", "scoring", "update")


def make_policy(shape: str, folder: Path) -> Qwen2Config:
    """Saves random weights and a tokenizer with a word for each of the vocabulary's numbers."""
    hidden, layers, heads, kv_heads, intermediate, vocabulary, tied = SHAPES[shape]
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    tokenizer.add_tokens([f"<|{number}|>" for number in range(len(tokenizer), vocabulary)])
    config = Qwen2Config(
        vocab_size=max(vocabulary, len(tokenizer)),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        tie_word_embeddings=tied,
        max_position_embeddings=32_768,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return config


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
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=dtype).to(options.device)
    ids = torch.arange(1024, device=options.device)[None] % model.config.vocab_size
    prompts, sampler = [[5 + row] * 64 for row in range(8)], LoopSampler(model, 1.0, STEPS, [], 0)

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
            }
        )


def make_trainer(options: argparse.Namespace, folder: Path, meter: Meter) -> AlignOPSDTrainer:
    gpu, tiny = options.device == "cuda", options.shape == "tiny"
    suite = load("webshop_tiny" if tiny else "webshop")
    sampling = {"use_vllm": True, "vllm_mode": "colocate"} if gpu and not options.no_vllm else {}
    config = AlignOPSDConfig(
        str(folder / "run"),
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=True,
        method="align_opsd",
        per_device_train_batch_size=8 * options.tasks,
        max_steps=len(ROUNDS),
        max_turns=options.turns,
        max_prompt_length=256 if tiny else 4096,
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
        skill_bank="webshop",
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
    with tempfile.TemporaryDirectory() as name:
        config = make_policy(options.shape, Path(name))
        first = first_answer(options, Path(name))
        matmul = matmul_rate(options.device, torch.bfloat16 if gpu else torch.float32)
        trainer = make_trainer(options, Path(name), meter)
        with meter.counting_scores():
            trainer.train()
        log, args = trainer.state.log_history, trainer.args
    shape = shape_of(options.shape, config)
    total = torch.cuda.get_device_properties(0).total_memory / GIB if gpu else None
    engine = sampler(shape, args, total) if gpu else None
    logged = {
        key: value for entry in log for key, value in entry.items() if key.startswith(("sampling/", "self_check/"))
    }
    return {
        "device": torch.cuda.get_device_name(0) if gpu else "cpu",
        "shape": options.shape,
        "parameters": shape.parameters,
        "matmul_flops": matmul,
        "first_answer": first,
        "rounds": [one | {"rates": rates(one, shape.parameters, matmul)} for one in meter.rounds],
        "ratio": meter.rounds[2]["seconds"] / meter.rounds[1]["seconds"],
        "peak_gib": peak(options.device),
        "estimate_gib": estimate(shape, args, Launch(), gpu_gib=total).peak,
        "sampler_gib": engine.share if engine else 0.0,
        "agreement": logged,
    }


def table(found: dict[str, Any]) -> str:
    lines = [f"{found['device']}, {found['shape']}, matmul {found['matmul_flops'] / 1e12:.2f} TFLOP/s"]
    for number, one in enumerate(found["rounds"]):
        warm = " (warm-up)" if number == 0 else ""
        lines.append(f"{one['method']}{warm}: {one['seconds']:.1f} s, {one['turns']} turns")
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
    parser.add_argument("--tasks", type=int, default=2, help="groups of 8 episodes a round")
    parser.add_argument("--turns", type=int, default=5, help="turns an episode")
    parser.add_argument("--completion", type=int, default=64, help="tokens of a response")
    parser.add_argument("--no_vllm", action="store_true", help="sample with transformers")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is visible; --device cpu --shape tiny runs the same code")
    found = measure(options)
    options.output.write_text(json.dumps(found, indent=2), encoding="utf-8")
    print(table(found))
    return found


if __name__ == "__main__":
    main()
