"""A policy's tokenizer outside of training, as the trainer would have it."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def load_tokenizer(path: str, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id. One without a padding token pads with its end token, as TRL has it.

    Args:
        model: the policy that reads what it makes.

    Raises:
        ValueError: if it has no chat template, or pads with a token that the model does not embed.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer of {path} has no chat template, which prompts are made with: take a model with one, or set "
            "tokenizer.chat_template and save it there"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    embedded = model.get_input_embeddings().num_embeddings
    if tokenizer.pad_token_id >= embedded:
        raise ValueError(
            f"the tokenizer of {path} pads with {tokenizer.pad_token!r}, token {tokenizer.pad_token_id}, and its model "
            f"embeds {embedded} tokens: call model.resize_token_embeddings(len(tokenizer)), or set a pad_token that it "
            "knows, and save both there"
        )
    return tokenizer
