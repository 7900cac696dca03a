"""Small tokenizers of every kind: how they mark the beginning of a text differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakes.toy import TEMPLATE, WORDS
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_LETTERS = sorted({*"".join(WORDS), *"\n,.:<>|_/▁ "})


def _metaspace(scheme: str, kind: Callable[[list[str]], Any]) -> Tokenizer:
    tokenizer = Tokenizer(kind(["<unk>", *_LETTERS, *WORDS, *(f"▁{word}" for word in WORDS)]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer


def _unigram(pieces: list[str]) -> models.Unigram:
    return models.Unigram([(one, -float(number < 50) - 1.0) for number, one in enumerate(dict.fromkeys(pieces))], 0)


def _bpe(pieces: list[str]) -> models.BPE:
    merges: dict[tuple[str, str], None] = {}
    for word in pieces:
        merges |= dict.fromkeys((word[:end], word[end]) for end in range(1, len(word)) if word[0] != "<")
    whole = [one + two for one, two in merges]
    return models.BPE({one: n for n, one in enumerate(dict.fromkeys([*pieces, *whole]))}, [*merges], unk_token="<unk>")


def _bytes() -> Tokenizer:
    pieces = [one for word in WORDS for one in (word, f"Ġ{word}")]
    tokenizer = Tokenizer(_bpe(["<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _prepending() -> Tokenizer:
    tokenizer = Tokenizer(_bpe(["<unk>", *_LETTERS, *WORDS, *(f"▁{word}" for word in WORDS)]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def _wordpiece() -> Tokenizer:
    pieces = ["<unk>", *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *WORDS]
    tokenizer = Tokenizer(models.WordPiece({one: n for n, one in enumerate(dict.fromkeys(pieces))}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": _bytes,
    "wordpiece": _wordpiece,
    "prepending": _prepending,
    **{f"bpe {one}": lambda one=one: _metaspace(one, _bpe) for one in ("first", "always", "never")},
    **{f"unigram {one}": lambda one=one: _metaspace(one, _unigram) for one in ("first", "always", "never")},
}


def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    tokenizer = KINDS[kind]()
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )
