"""Policies by name: the shipped weights, SmolLM2 from its package, and a policy's tokenizer as the trainer loads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignopsd_trl.offline import OFFLINE_MODEL, smollm2

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DATA = Path(__file__).parent / "data"
SHIPPED_MODELS = {
    "tiny": _DATA / "tiny_webshop",
    "tiny_trips": _DATA / "tiny_trips",
    "tiny_hops": _DATA / "tiny_hops",
    "tiny_alfworld": _DATA / "tiny_alfworld",
    "tiny_pairs": _DATA / "tiny_pairs",
    "tiny_searchqa": _DATA / "tiny_searchqa",
}


def resolve_model(name: str) -> str:
    """Returns the path of a shipped model (a key of `SHIPPED_MODELS`) or of ``"smollm2"``. Any other name is a path or
    a hub id and comes back unchanged.

    Raises:
        ValueError: for ``"smollm2"`` without its package.
    """
    if name == OFFLINE_MODEL:
        return str(smollm2())
    return str(SHIPPED_MODELS[name]) if name in SHIPPED_MODELS else name


def load_tokenizer(path: str, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or hub id. Without a padding token it pads with its end token, as in TRL.

    Args:
        model: the policy that reads the tokens.

    Raises:
        ValueError: if it has no chat template, or pads with a token that the model does not embed.
    """
    from transformers import AutoTokenizer

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
