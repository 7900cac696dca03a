"""Finds policies by name (shipped weights, SmolLM2 from its package) and loads their tokenizers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from alignopsd_trl.common.offline import OFFLINE_MODEL, smollm2

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DATA = Path(__file__).parents[1] / "data"
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


@contextmanager
def available(name: str) -> Generator[None]:
    """Replaces an error of transformers about a model that is neither on this machine nor on the Hub by one sentence.

    Raises:
        ValueError: in place of an `OSError`, unless the name is a folder's.
    """
    try:
        yield
    except OSError as error:
        if Path(resolve_model(name)).is_dir():
            raise
        reason, shipped = str(error).strip().splitlines()[0], ", ".join(SHIPPED_MODELS)
        raise ValueError(
            f"--model {name} is no folder and no shipped policy ({shipped}), and as a Hub id: {reason}"
        ) from error


@contextmanager
def unreadable(path: str | Path, file: str) -> Generator[None]:
    """Replaces any error of transformers about a model's file by one sentence.

    Raises:
        ValueError: in place of any other error.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()[:60]) or "nothing more is known"
        raise ValueError(
            f"model={str(path)!r}: its {file} can't be used ({type(error).__name__}: {reason}); correct "
            "it, or copy the model again"
        ) from error


def end_ids(model: PreTrainedModel, own: int) -> list[int]:
    """Returns the tokens that end a response: the tokenizer's ``own`` and those of the model's generation config.

    Raises:
        TypeError: if the generation config names anything but token ids.
    """
    declared: Any = model.generation_config.eos_token_id
    found = {own, *(declared if isinstance(declared, list) else [] if declared is None else [declared])}
    if strange := [one for one in found if type(one) is not int]:
        raise TypeError(f"eos_token_id has {strange[0]!r}, which is no token's number")
    return sorted(found)


def load_tokenizer(
    path: str, model: PreTrainedModel, kwargs: Mapping[str, Any] = MappingProxyType({}), **options: Any
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or hub id. Without a padding token it pads with its end token, as in TRL.

    Args:
        model: the policy that gets the tokens.
        kwargs: passed to the chat template; options of loading go to transformers.

    Raises:
        ValueError: if it can't be read, has no chat template or end token, if its template fails, or if it has a token
            that the model does not embed.
    """
    from transformers import AutoTokenizer

    with unreadable(path, "tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(path, **options)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer of {path} has no chat template, which prompts are made with: take a model with one, or set "
            "tokenizer.chat_template and save it there"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {path} has no eos_token, which ends a turn: set tokenizer.eos_token")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    embedded = model.get_input_embeddings().num_embeddings
    if tokenizer.pad_token_id >= embedded:
        raise ValueError(
            f"the tokenizer of {path} pads with {tokenizer.pad_token!r}, token {tokenizer.pad_token_id}, and its model "
            f"embeds {embedded} tokens: call model.resize_token_embeddings(len(tokenizer)), or set a pad_token that it "
            "knows, and save both there"
        )
    with unreadable(path, "chat template"):
        shown = tokenizer.apply_chat_template(
            [{"role": "user", "content": "a task"}], add_generation_prompt=True, return_dict=True, **kwargs
        )["input_ids"]
        if not shown:
            raise ValueError("it writes nothing of a prompt that the tokenizer knows")
    # special tokens, as of pictures, may go beyond: no text is encoded to them
    added = [number for number, token in tokenizer.added_tokens_decoder.items() if not token.special]
    if max(tokenizer.vocab_size - 1, tokenizer.eos_token_id, *shown, *added) >= embedded:
        raise ValueError(
            f"the tokenizer of {path} knows {len(tokenizer)} tokens, and its model embeds {embedded}: call "
            "model.resize_token_embeddings(len(tokenizer)), and save both there"
        )
    return tokenizer
