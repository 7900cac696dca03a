"""Supervised training of a small causal language model on prompt-response pairs, on one CPU core."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from assets.tiny_policies.demonstrations import Demonstration

IGNORED = -100
PROMPT_PHASE, PROMPT_WEIGHT = 0.3, 0.25


def encode(
    tokenizer: PreTrainedTokenizerBase, demonstrations: Sequence[Demonstration], actions: float = 0.0, seed: int = 0
) -> list[tuple[list[int], int]]:
    """For each demonstration, the token ids of the whole conversation and how many of them belong to the prompt.

    Args:
        actions (`float`, *optional*, defaults to 0.0):
            Share of the demonstrations whose thought counts as prompt, so that their action alone is learnt.
    """
    chats = [[{"role": "user", "content": shown.prompt}] for shown in demonstrations]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    responses = tokenizer([shown.response for shown in demonstrations])["input_ids"]
    draw, ends = random.Random(seed), tokenizer("</think><action>")["input_ids"][-1]
    pairs = zip(prompts, responses, strict=True)
    return [
        (
            prompt + response + [tokenizer.eos_token_id],
            len(prompt) + (response.index(ends) + 1 if draw.random() < actions else 0),
        )
        for prompt, response in pairs
    ]


def train(
    model: PreTrainedModel,
    examples: Sequence[tuple[list[int], int]],
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
) -> float:
    """AdamW with 5 % warm-up and cosine decay on the mean loss of response tokens; for the first 30 % of the steps the
    prompts are learnt too, with a quarter of the weight, which is where a small model learns to copy. Returns the mean
    loss of the last fiftieth of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    seen: list[float] = []
    model.train()
    bar = tqdm(zip(range(steps), _batches(examples, batch, random.Random(seed)), strict=False), total=steps)
    for step, chosen in bar:
        ids, labels = _pad(chosen)
        response, prompt = losses(model, ids, labels, with_prompt=step < PROMPT_PHASE * steps)
        (response + PROMPT_WEIGHT * prompt).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(response.item())
        bar.set_postfix_str(f"loss {seen[-1]:.3f}")
    tail = seen[-max(1, steps // 50) :]
    return sum(tail) / len(tail)


def losses(model: PreTrainedModel, ids: Tensor, labels: Tensor, with_prompt: bool) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of the response tokens and of the prompt tokens (zero unless asked for); the output layer sees
    no other position.

    Args:
        ids (`torch.LongTensor` of shape `(B, T)`): right-padded with 0, so that causal attention needs no mask.
        labels (`torch.LongTensor` of shape `(B, T)`): -100 on prompt and padding.
    """
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    following, wanted = ids[:, 1:], labels[:, 1:] != IGNORED
    response = functional.cross_entropy(model.lm_head(hidden[wanted]), following[wanted])
    if not with_prompt:
        return response, response.new_zeros(())
    shown = ~wanted & (following != 0)
    return response, functional.cross_entropy(model.lm_head(hidden[shown]), following[shown])


def _rate(step: int, steps: int) -> float:
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _batches(examples: Sequence[tuple[list[int], int]], batch: int, draw: random.Random) -> Iterator[list]:
    """Shuffled batches for ever; inside a window of eight batches, neighbours in length go together."""
    while True:
        order = draw.sample(range(len(examples)), len(examples))
        for start in range(0, len(order) - 8 * batch + 1, 8 * batch):
            window = sorted(order[start : start + 8 * batch], key=lambda place: len(examples[place][0]))
            groups = [window[place : place + batch] for place in range(0, len(window), batch)]
            draw.shuffle(groups)
            yield from ([examples[place] for place in group] for group in groups)


def _pad(chosen: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    width = max(len(ids) for ids, _ in chosen)
    ids = torch.zeros(len(chosen), width, dtype=torch.long)
    labels = torch.full((len(chosen), width), IGNORED)
    for row, (tokens, prompt) in enumerate(chosen):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
    return ids, labels
