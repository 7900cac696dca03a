"""``tiny``: a fresh policy of a million parameters whose tokenizer knows the words of one task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from alignopsd_trl.own_task.warm_start.tokenizer import build_tokenizer

CONTEXT = 4096  # tokens; positions are rotary, so that a longer context costs no weights
ROLES = ("system\n", "user\n", "assistant\n", "tool\n")
TAGS = ("<think>", "</think>", "<action>", "</action>")

SPREAD = 0.1
"""Standard deviation of fresh weights. At the usual 0.02 attention stays flat for hundreds of updates: no copying."""
SHARP, FAINT = 6.0, 0.1
"""Size of the biases of the first layer's queries and keys, and factor of their weights. With these values a head puts
nearly all its attention on one distance."""


def tiny_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """Makes a tokenizer with one token for each word of the texts; other words are spelt."""
    return build_tokenizer([*ROLES, *texts], CONTEXT, TAGS)


def tiny_model(tokenizer: PreTrainedTokenizerBase, layers: int = 2, seed: int = 0) -> Qwen2ForCausalLM:
    """Makes a model with fresh layers of width 128; the tied embeddings are most of its other weights."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=SPREAD,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    look_back(model)
    return model


@torch.no_grad()
def look_back(model: Qwen2ForCausalLM) -> None:
    """Makes the heads of the first layer attend to the token itself, the one before, the second before, and so on.
    A model copies a word by the words before it; a fresh model needs most of its training to find them.

    Rotary positions rotate queries and keys by their position, so biases alone give a score per distance: a key's
    bias, rotated by a distance, matches the query's bias at that distance.
    """
    attention: Any = model.model.layers[0].self_attn
    angles = model.model.rotary_emb.inv_freq
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight *= FAINT
    heads = torch.arange(model.config.num_attention_heads)
    for projection, distances in ((attention.q_proj, 0 * heads), (attention.k_proj, heads)):
        turned = distances[:, None] * angles
        projection.bias.copy_(SHARP * torch.cat([turned.cos(), turned.sin()], dim=1).flatten())
