"""What a conversation saves: tokens of the update and of scoring, a row a turn against one row a dialogue.

Plays episodes of one task with responses of random words, through the project's own player, and plans update and
scoring as the trainer does, for three ways to train on them:

    rows          each turn a prompt of its own that shows the whole history (``history="window"``)
    conversation  one dialogue a trajectory; its turns are one row, other responses branch off
    alone         the same dialogue, but each turn a row and each view of it scored alone

Scoring is what AlignOPSD asks for: of each turn the student's own response, the same under the privileged prompt, and
for some turns under the privileged prompt of a sibling's turn. Nothing is computed, tokens are counted; ``--compute``
also trains a round of a random model each way (RLSD: no matched views), in a process of its own, and takes the
processor's seconds and the most memory. ``--shape 0.5b`` has the widths and the words of Qwen2.5-0.5B.

    python benchmarks/conversation_cost.py --output cost.json
    python benchmarks/conversation_cost.py --output cost.json --turns 30 --history 5 --observation 240
    python benchmarks/conversation_cost.py --output cost.json --siblings 2 --turns 20 --template 30000 \\
        --compute conversation --shape 0.5b --layers 4
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments import Opening, Projection, Step, TextEnvironment, View, open_batch
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.sampler import Responses
from alignopsd_trl.scoring.packing import Packed, Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, Padded, score_pairs
from alignopsd_trl.trainer import AlignOPSDTrainer
from alignopsd_trl.training.turn_rows import Layout, collate_rows, sub_chunks
from alignopsd_trl.turns import Seeds, Trajectory, TurnBatch

WAYS = {"rows": ("window", False), "conversation": ("conversation", True), "alone": ("conversation", False)}
SHAPES = {
    "small": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    },
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}
LONGEST = 1 << 20
CHAT = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def words_of(count: int, draw: random.Random) -> str:
    return " ".join(f"w{draw.randrange(1000)}" for _ in range(count))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A token a word."""
    marks = ["<pad>", "<|im_end|>", "<|im_start|>", "<unk>", "user", "assistant", "<think>", "</think>", "look", "then"]
    vocabulary = {word: number for number, word in enumerate([*marks, *(f"w{number}" for number in range(1000))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, padding_side="left", chat_template=CHAT)


class LongPrompt:
    """Instructions, what was seen and done, what is seen now."""

    name = "long"

    def __init__(self, instructions: str):
        self._instructions = instructions

    def render(self, view: View, skill: str = "") -> str:
        past = [f"{record.observation} {record.action}" for record in view.history]
        return " ".join(filter(None, [self._instructions, skill, *past, view.observation]))


def environment(arguments: argparse.Namespace) -> type[TextEnvironment]:
    """Episodes whose parts have so many tokens."""

    class Long(TextEnvironment):
        prompt = LongPrompt(words_of(arguments.template, random.Random(0)))
        history_length = arguments.history
        max_turns = arguments.turns
        openings_may_differ = True

        def reset(self, dynamics_seed: int, **columns: Any) -> Opening:
            self._draw, self._turn = random.Random(dynamics_seed), 0
            return Opening(words_of(arguments.observation, self._draw), "task")

        def step(self, action: str) -> Step:
            self._turn += 1
            done = self._turn == arguments.turns
            return Step(words_of(arguments.observation, self._draw), float(done and self._draw.random() < 0.5), done)

        def project(self, response: str, admissible: Any = None) -> Projection:
            return Projection(" ".join(response.split()[-arguments.action :]), True)

    return Long


class Responder:
    """Responses of so many random words, the same for the same prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, length: int):
        self._tokenizer, self._length = tokenizer, length

    def respond(self, prompts: Sequence[Sequence[int]], until: Any = None) -> Responses:
        draws = [random.Random(str(prompt[-64:])) for prompt in prompts]
        texts = [f"<think> {words_of(self._length - 8, draw)} </think> {words_of(5, draw)}" for draw in draws]
        ids = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return Responses([[*one, self._tokenizer.eos_token_id] for one in ids], None)


def play(arguments: argparse.Namespace, history: str) -> list[Trajectory]:
    tokenizer = build_tokenizer()
    batch = open_batch(environment(arguments), arguments.siblings, 60.0)
    skill = words_of(arguments.skill, random.Random(1))
    options = PlayOptions(LONGEST, history=history, past_thinking="keep")
    sampler, ends = Responder(tokenizer, arguments.response), [tokenizer.eos_token_id]
    player = Player.of(batch, sampler, tokenizer, ends, options, skills=lambda *ignored: (skill, ()))
    try:
        return player.play(
            [{"task_id": "t"}] * arguments.siblings,
            [Seeds(0, sibling) for sibling in range(arguments.siblings)],
            ["t"] * arguments.siblings,
        )
    finally:
        batch.close()


class Counting:
    """A scoring model that counts what it would encode."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.tokens = Counter(useful=0, padded=0, forwards=0)

    def _count(self, useful: int, padded: int) -> None:
        self.tokens.update(useful=useful, padded=padded, forwards=1)

    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor:
        self._count(int(prompt.mask.sum() + response.mask.sum()), prompt.mask.numel() + response.mask.numel())
        return torch.zeros(response.mask.shape)

    def shared(self, rows: Packed, before: Any = None) -> torch.Tensor:
        self._count(int((rows.segment >= 0).sum()), rows.segment.numel())
        return torch.zeros(rows.segment.shape)


def views(batch: TurnBatch, matched: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target turns: each turn with itself, and a share of them with a turn of a sibling."""
    draw = random.Random(2)
    pairs = [(turn, turn) for turn in range(len(batch))]
    rollouts = batch.rollout.tolist()
    for target in range(len(batch)):
        others = [turn for turn, rollout in enumerate(rollouts) if rollout != rollouts[target]]
        if others and draw.random() < matched:
            pairs.append((draw.choice(others), target))
    return tuple(torch.tensor(pairs).T)  # type: ignore[return-value]


def count_scoring(batch: TurnBatch, arguments: argparse.Namespace, alone: bool) -> dict[str, int]:
    model, forwards = Counting(), Forwards(pad_id=0, budget=arguments.budget, shared=not alone)
    responses = Ragged.of([turn.response_ids for turn in batch.turns])
    every = torch.arange(len(batch))
    score_pairs(model, Ragged.of([turn.prompt_ids for turn in batch.turns]), responses, every, every, forwards)
    privileged = Ragged.of([turn.privileged_ids for turn in batch.turns])
    score_pairs(model, privileged, responses, *views(batch, arguments.matched), forwards)
    return dict(model.tokens)


def count_update(batch: TurnBatch, arguments: argparse.Namespace, merge: bool) -> dict[str, int]:
    layout = Layout.of(batch, merge)
    rows = collate_rows(batch, {"advantages": torch.ones(batch.policy_mask.shape)}, len(layout), 0, 1, layout)
    every = torch.ones(len(layout), dtype=torch.bool)
    chunks = sub_chunks(rows, every, arguments.budget, lambda number: number)
    masks = [part[name] for part in chunks for name in ("prompt_mask", "completion_mask")]
    useful, padded = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    return {"useful": useful, "padded": padded, "forwards": len(chunks), "rows": len(layout)}


def counted(arguments: argparse.Namespace) -> dict[str, Any]:
    result = {}
    for name, (history, merge) in WAYS.items():
        batch = TurnBatch.of(play(arguments, history), pad_id=0)
        scoring = count_scoring(batch, arguments, alone=name == "alone")
        result[name] = {"update": count_update(batch, arguments, merge), "scoring": scoring}
    return result


def computed(arguments: argparse.Namespace, way: str) -> dict[str, float]:
    """Processor seconds of scoring and update of one round, and the most GiB of its process, through the trainer."""
    history, merge = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        seconds = _round(arguments, Path(folder), history, merge, shared=way != "alone")
    return {**seconds, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def _round(arguments: argparse.Namespace, folder: Path, history: str, merge: bool, shared: bool) -> dict[str, float]:
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    shape = {"vocab_size": len(tokenizer), **SHAPES[arguments.shape]}
    shape["num_hidden_layers"] = arguments.layers or shape["num_hidden_layers"]
    config = Qwen2Config(num_key_value_heads=2, max_position_embeddings=LONGEST, **shape)
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    Qwen2ForCausalLM(config).save_pretrained(folder / "policy")
    tasks = Dataset.from_list([{"task_id": "t"}])
    trainer = AlignOPSDTrainer(
        str(folder / "policy"),
        AlignOPSDConfig(
            str(folder / "run"),
            method="rlsd",
            history=history,
            past_thinking="keep",
            merge_rows=merge,
            share_prefixes=shared,
            skip_zero_advantage=False,
            self_check=False,
            per_device_train_batch_size=arguments.siblings,
            num_generations=arguments.siblings,
            max_prompt_length=LONGEST,
            max_completion_length=arguments.response + 8,
            skill_tokens=arguments.skill,
            tokens_per_forward=arguments.budget,
            max_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=arguments.shape != "small",
            save_strategy="no",
            save_trajectories=False,
            report_to="none",
            disable_tqdm=True,
        ),
        environment_factory=environment(arguments),
        train_dataset=tasks,
        skill_bank=lambda task_text, row: words_of(arguments.skill, random.Random(1)),
        processing_class=tokenizer,
    )
    trainer.backend.sampler = lambda *settings: Responder(tokenizer, arguments.response)
    trainer.phases.clock = time.process_time  # type: ignore[method-assign]
    trainer.train()
    return {phase: trainer.phases.total[phase] for phase in ("scoring", "update")}


def show(result: dict[str, Any], console: Console) -> None:
    table = Table("", *WAYS, "rows / conversation", title=result["case"])
    for phase in ("update", "scoring"):
        for kind in ("useful", "padded"):
            values = [result["tokens"][way][phase][kind] for way in WAYS]
            table.add_row(
                f"{phase}, {kind} tokens", *(f"{value:,}" for value in values), f"{values[0] / values[1]:.1f}"
            )
    for name in ("scoring", "update", "gib"):
        values = [result["computed"].get(way, {}).get(name) for way in WAYS]
        ratio = f"{values[0] / values[1]:.1f}" if values[0] and values[1] else ""
        unit = "GiB" if name == "gib" else f"{name}, CPU s"
        table.add_row(unit, *("" if value is None else f"{value:.1f}" for value in values), ratio)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--history", type=int, help="turns that a prompt of its own shows; all by default")
    parser.add_argument("--siblings", type=int, default=8)
    parser.add_argument("--template", type=int, default=600, help="tokens of instructions and task")
    parser.add_argument("--observation", type=int, default=290)
    parser.add_argument("--response", type=int, default=150)
    parser.add_argument("--action", type=int, default=10, help="tokens of a response that a history shows")
    parser.add_argument("--skill", type=int, default=300)
    parser.add_argument("--matched", type=float, default=0.8, help="share of turns with a matched view")
    parser.add_argument("--budget", type=int, default=32768, help="padded tokens per forward")
    parser.add_argument("--compute", nargs="*", choices=tuple(WAYS), default=[], help="also train a round these ways")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="small", help="of the model that is trained")
    parser.add_argument("--layers", type=int, help="fewer than the shape has; seconds are nearly proportional")
    arguments = parser.parse_args()
    arguments.history = arguments.turns if arguments.history is None else arguments.history
    case = f"{arguments.siblings} episodes of {arguments.turns} turns, history of {arguments.history}"
    result: dict[str, Any] = {"case": case, "arguments": {**vars(arguments), "output": str(arguments.output)}}
    result["tokens"] = counted(arguments)
    result["computed"] = {}
    for way in arguments.compute:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            result["computed"][way] = apart.submit(computed, arguments, way).result()
    show(result, Console())
    arguments.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
