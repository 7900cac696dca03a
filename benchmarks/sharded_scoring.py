"""Scoring under FSDP2: tokens a second with every prompt once, and with each pair on its own.

    torchrun --nproc_per_node 2 benchmarks/sharded_scoring.py --recording rounds.pt [--width 256] [--output FILE]

Scores the privileged views of a recorded round (`benchmarks/update_cost.py --recording rounds.pt` makes one): of each
turn its own view, two views of other turns, and a shorter prompt in place of the student's. Processes of the CPU, gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fsdp_on_cpu

fsdp_on_cpu.shard()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel  # noqa: E402

from alignopsd_trl import AlignOPSDConfig, AlignOPSDTrainer  # noqa: E402
from alignopsd_trl.common.models import resolve_model  # noqa: E402
from alignopsd_trl.environments import load  # noqa: E402
from alignopsd_trl.scoring.ragged import Ragged  # noqa: E402
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs  # noqa: E402
from alignopsd_trl.scoring.trl_scoring import PolicyScorer  # noqa: E402

Pairs = tuple[list[list[int]], list[list[int]], list[int], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path, required=True)
    parser.add_argument("--width", type=int, help="hidden size of random weights in place of the tiny policy's")
    parser.add_argument("--budget", type=int, default=4096, help="padded tokens per forward")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="JSON file of the figures")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    thinking = torch.load(chosen.recording, weights_only=True)["rounds"][-1]["thinking"]
    trainer = make_trainer(chosen.width)

    def measure(inputs: list[dict]) -> None:
        half = len(thinking) // dist.get_world_size()
        mine = thinking[dist.get_rank() * half : (dist.get_rank() + 1) * half]
        fsdp_on_cpu.assert_sharded(trainer)
        figures = {
            name: seconds(trainer, views(mine), chosen.budget, shared, chosen.repeats)
            for name, shared in (("shared", True), ("each pair alone", False))
        }
        tokens = torch.tensor(float(useful(views(mine))))
        dist.all_reduce(tokens)
        report(figures, int(tokens), chosen)
        dist.barrier()
        os._exit(0)  # nothing is trained

    trainer._generate_and_score_completions = measure
    trainer.train()


def make_trainer(width: int | None) -> AlignOPSDTrainer:
    suite, folder = load("webshop_tiny"), resolve_model("tiny")
    model = AutoModelForCausalLM.from_pretrained(folder).float()
    return AlignOPSDTrainer(
        model=model if width is None else widened(model, width),
        args=AlignOPSDConfig(
            output_dir="outputs/sharded_scoring", use_cpu=True, per_device_train_batch_size=8, num_generations=8,
            max_steps=1, report_to=[], save_strategy="no", beta=0.0, max_completion_length=40, max_prompt_length=256,
        ),
        processing_class=AutoTokenizer.from_pretrained(folder),
        environment_factory=suite.factory,
        train_dataset=suite.tasks("train").select(range(16)),
        skill_bank=suite.skill_bank,
        encoder="lexical",
    )  # fmt: skip


def widened(model: PreTrainedModel, width: int) -> PreTrainedModel:
    """Random weights of the same family, with a vocabulary of 8,192."""
    config = model.config
    config.hidden_size, config.intermediate_size, config.vocab_size = width, width * 11 // 4, 8192
    config.head_dim, config.num_attention_heads, config.num_key_value_heads = 32, width // 32, width // 64
    return type(model)(config).float()


def views(thinking: list[tuple[list[int], list[int]]]) -> Pairs:
    """Prompts, responses, and which pairs of them are scored."""
    prompts, responses = [p for p, _ in thinking], [r for _, r in thinking]
    turns, draw = len(prompts), random.Random(0)
    short = [prompt[len(prompt) // 3 :] for prompt in prompts]
    others = [draw.randrange(turns) for _ in range(2 * turns)]
    own = list(range(turns))
    return prompts + short, responses, [*own, *others, *range(turns, 2 * turns)], [*own, *own, *own, *own]


def useful(pairs: Pairs) -> int:
    prompts, responses, source, target = pairs
    return sum(len(prompts[s]) + len(responses[t]) for s, t in zip(source, target, strict=True))


def seconds(trainer: AlignOPSDTrainer, pairs: Pairs, budget: int, shared: bool, repeats: int) -> list[float]:
    prompts, responses, source, target = pairs
    forwards = Forwards(
        pad_id=trainer.processing_class.pad_token_id, budget=budget, shared=shared, agree=trainer.processes.agree
    )
    took = []
    for _ in range(repeats + 1):
        dist.barrier()
        start = time.perf_counter()
        score_pairs(
            PolicyScorer(trainer), Ragged.of(prompts), Ragged.of(responses), torch.tensor(source),
            torch.tensor(target), forwards,
        )  # fmt: skip
        dist.barrier()
        took.append(time.perf_counter() - start)
    return took[1:]


def report(figures: dict[str, list[float]], tokens: int, chosen: argparse.Namespace) -> None:
    if dist.get_rank():
        return
    rates = {name: tokens / statistics.median(took) for name, took in figures.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} tokens/s over {dist.get_world_size()} processes, {figures[name]} s", flush=True)
    if chosen.output:
        content = {"processes": dist.get_world_size(), "width": chosen.width, "budget": chosen.budget, "tokens": tokens}
        chosen.output.write_text(json.dumps(content | {"seconds": figures, "tokens_per_second": rates}, indent=1))


if __name__ == "__main__":
    main()
