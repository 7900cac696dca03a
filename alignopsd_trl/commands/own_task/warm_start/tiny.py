"""``tiny``: a fresh policy of a million parameters, and its tokenizer that knows the words of one task.

The tokenizer is word-level, and its decoding restores the text.

Every word, number (decimals included) and punctuation mark is one token, whether or not a space comes before it: a
word between brackets, in a title and in a request is the same token, which makes copying easy for a small model. The
normaliser sets marks around words and drops the single space between two of them; the decoder turns the marks back.
An environment may name words that are cut into pieces: a small model copies a few frequent pieces better than one rare
word.
Words outside of the vocabulary are spelt in characters, other characters in bytes, so that
``decode(encode(text)) == text`` for any text without the two marks (private-use characters).
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CONTEXT = 4096  # tokens; positions are rotary, so that a longer context costs no weights
ROLES = ("system\n", "user\n", "assistant\n", "tool\n")
TAGS = ("<think>", "</think>", "<action>", "</action>")

SPREAD = 0.1
"""Standard deviation of fresh weights. At the usual 0.02 attention stays flat for hundreds of updates: no copying."""
SHARP, FAINT = 6.0, 0.1
"""Size of the biases of the first layer's queries and keys, and factor of their weights. With these values a head puts
nearly all its attention on one distance."""

OPEN, CLOSE = "\ue000", "\ue001"
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOADED_AS_SAVED = {"AutoTokenizer": [None, "tokenizer.json"]}
"""transformers 5 loads Qwen's own splitting rules for every model of type qwen2, even if another tokenizer was saved.
With an entry for remote code it loads the saved class instead (and does not use the code itself)."""


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


# The tokenizer


NORMALIZER = normalizers.Sequence(
    [
        normalizers.Replace(Regex(r"(?<!\w)(?<!\d\.)(?=\w)"), OPEN),
        normalizers.Replace(Regex(r"(?<=\w)(?!\w)(?!(?<=\d)\.\d)"), CLOSE),
        normalizers.Replace(f"{CLOSE} {OPEN}", f"{CLOSE}{OPEN}"),
    ]
)
DECODER = decoders.Sequence(
    [
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Replace(f"{CLOSE}{OPEN}", " "),
        decoders.Replace(OPEN, ""),
        decoders.Replace(CLOSE, ""),
    ]
)


def build_tokenizer(
    texts: Iterable[str], length: int, phrases: Sequence[str], pieces: Sequence[Sequence[str]] = ()
) -> PreTrainedTokenizerFast:
    """Builds a tokenizer with one token for every piece that occurs in `texts`, in order of first occurrence.

    Args:
        length (`int`): the model's context in tokens.
        phrases: texts that are one token in any context, such as ``<think>``.
        pieces: regular expressions of words with more than one token, each as the patterns of its tokens in order,
            such as ``("[A-Z]{2}", "[0-9]+")`` for words like ``AB12``.
    """
    splitter = _splitter(pieces)
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for character in [OPEN, CLOSE, *string.printable]:
        vocabulary.setdefault(character, len(vocabulary))
    for text in texts:
        for piece, _ in splitter.pre_tokenize_str(NORMALIZER.normalize_str(text)):
            vocabulary.setdefault(piece, len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True, byte_fallback=True))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = NORMALIZER, splitter, DECODER
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (PAD, START, END)])
    backend.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        model_max_length=length,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        auto_map=LOADED_AS_SAVED,
    )


class WordCount:
    """Counts tokens like a tokenizer that knows all words; stands in for a policy's tokenizer."""

    def __init__(self) -> None:
        self._splitter = _splitter(())

    def __call__(self, text: str, **options: object) -> dict[str, list[str]]:
        pieces = self._splitter.pre_tokenize_str(NORMALIZER.normalize_str(text))
        return {"input_ids": [piece for piece, _ in pieces]}


def _splitter(pieces: Sequence[Sequence[str]]) -> pre_tokenizers.PreTokenizer:
    cuts = "".join(f"{cut}|" for parts in pieces for cut in _cuts(parts))
    return pre_tokenizers.Split(Regex(f"{cuts}{OPEN}[^{OPEN}{CLOSE}]+{CLOSE}|[^{OPEN}{CLOSE}] ?"), "isolated")


def _cuts(parts: Sequence[str]) -> Iterator[str]:
    """Yields a pattern for each part of a word. A later part only matches behind the first one: if no first part
    matches where a word opens, the whole word is one piece."""
    for place, part in enumerate(parts):
        rest = "".join(f"(?:{later})" for later in parts[place + 1 :])
        following = f"(?={rest}{CLOSE})" if rest else CLOSE
        yield f"{'' if place else OPEN}(?:{part}){following}"
