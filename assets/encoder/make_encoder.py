"""Makes the sentence encoders that come with the package, with sentence-transformers.

    python -m assets.encoder.make_encoder --output alignopsd_trl/data/encoders/tiny
    python -m assets.encoder.make_encoder --worlds webshop_trips,searchqa_hops,alfworld_pairs \
        --output alignopsd_trl/data/encoders/tiny_situated

1. Scripted players play training tasks in sibling groups; each thought knows its decision (`assets.encoder.thoughts`).
2. A word-piece vocabulary of these thoughts and a BERT of two layers of width 64 that averages its tokens.
3. Thoughts of one task: the same decision shall have a cosine above the paper's gamma_H, another one below it.

A few CPU minutes. Seeds are fixed. Weights are stored in half precision; `alignopsd_trl.encoder` computes in float32.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import BertWordPieceTokenizer
from torch.nn.functional import cosine_similarity, softplus
from tqdm import tqdm
from transformers import BertConfig, BertModel, BertTokenizer

from alignopsd_trl.environments.loading import load
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
from assets.encoder.thoughts import WORLDS, Thoughts

THRESHOLD = AlignOPSDOptions().similarity_threshold
SHARPNESS = 20.0
WORDS, LENGTH, WIDTH = 2000, 128, 64
HARD = 4
PAIRS = 2048  # of a batch, half of them of the same decision where there are as many


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--tasks", type=int, default=400, help="sibling groups of each world")
    parser.add_argument("--worlds", default="webshop_trips,webshop_tiny", help="names, separated by commas")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--groups", type=int, default=8, help="sibling groups of a step")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.manual_seed(arguments.seed)
    groups = list(training_thoughts(arguments.worlds.split(","), arguments.tasks, arguments.seed))
    model = build(groups)
    print(f"{len(groups)} groups, {sum(p.numel() for p in model.parameters())} parameters")
    train(model, groups, arguments.steps, arguments.groups, arguments.learning_rate, arguments.seed)
    model.half().save(str(arguments.output), create_model_card=False)


def training_thoughts(worlds: Sequence[str], tasks: int, seed: int) -> Iterable[Thoughts]:
    """Of training tasks of these worlds, in a drawn order."""
    draw = random.Random(seed)
    for name in worlds:
        play, suite = WORLDS[name][0], load(name)
        rows = list(suite.tasks("train"))
        yield from play(suite, draw.sample(rows, min(tasks, len(rows))), seed)


def build(groups: Sequence[Thoughts]) -> SentenceTransformer:
    """A model with random weights; its vocabulary falls back to characters."""
    words = BertWordPieceTokenizer(lowercase=True)
    texts = [text for group in groups for text in group.texts]
    words.train_from_iterator(
        [*texts, *map(chr, range(33, 127))], vocab_size=WORDS, min_frequency=1, show_progress=False
    )
    tokenizer = BertTokenizer(tokenizer_object=words._tokenizer, model_max_length=LENGTH)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with tempfile.TemporaryDirectory() as start:
        tokenizer.save_pretrained(start)
        BertModel(config).save_pretrained(start)
        body = Transformer(start, max_seq_length=LENGTH)
    return SentenceTransformer(modules=[body, Pooling(WIDTH, pooling_mode="mean")], device="cpu")


def train(
    model: SentenceTransformer, groups: Sequence[Thoughts], steps: int, together: int, learning_rate: float, seed: int
) -> None:
    """AdamW on the logistic loss of ``SHARPNESS * (cosine - THRESHOLD)``, both kinds of pairs weighing alike and of
    other decisions the hardest pairs alone: most are easy, being about another request of the trip."""
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    model.train()
    bar = tqdm(range(steps))
    for _ in bar:
        texts, left, right, same = pairs([draw.choice(groups) for _ in range(together)], draw)
        rows = model(model.preprocess(texts))["sentence_embedding"]
        away = torch.where(same, -1.0, 1.0) * SHARPNESS * (cosine_similarity(rows[left], rows[right]) - THRESHOLD)
        apart = softplus(away[~same])
        loss = (softplus(away[same]).mean() + apart.topk(len(apart) // HARD).values.mean()) / 2
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        bar.set_postfix_str(f"loss {loss.item():.3f}")
    model.eval()


def pairs(
    groups: Sequence[Thoughts], draw: random.Random
) -> tuple[list[str], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distinct texts, places of both sides of each pair, and whether the decision is the same."""
    texts: dict[str, int] = {}
    found: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for group in groups:
        places = [texts.setdefault(text, len(texts)) for text in group.texts]
        for one, other in itertools.combinations(range(len(places)), 2):
            if places[one] != places[other]:
                found[group.decisions[one] == group.decisions[other]].append((places[one], places[other]))
    kept = {same: draw.sample(some, min(PAIRS // 2, len(some))) for same, some in found.items()}
    chosen = torch.tensor(kept[True] + kept[False])
    same = torch.arange(len(chosen)) < len(kept[True])
    return list(texts), chosen[:, 0], chosen[:, 1], same


if __name__ == "__main__":
    main()
