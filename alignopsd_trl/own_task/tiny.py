"""``tiny``: a fresh policy of a million parameters whose tokenizer knows the words of one task."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from alignopsd_trl.own_task.tokenizer import build_tokenizer

CONTEXT = 4096  # tokens; positions are rotary, so that a longer context costs no weights
ROLES = ("system\n", "user\n", "assistant\n", "tool\n")
TAGS = ("<think>", "</think>", "<action>", "</action>")

SPREAD = 0.1
"""Of fresh weights. At the usual 0.02 attention stays flat for hundreds of updates, and no copying is learnt."""


def tiny_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """One token for each word of the texts; other words are spelt."""
    return build_tokenizer([*ROLES, *texts], CONTEXT, TAGS)


def tiny_model(tokenizer: PreTrainedTokenizerBase, layers: int = 2, seed: int = 0) -> Qwen2ForCausalLM:
    """Layers of width 128 with fresh weights; the tied vocabulary is most of what else there is."""
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
        return Qwen2ForCausalLM(config)
