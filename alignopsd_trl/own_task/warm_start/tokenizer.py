"""A word-level tokenizer whose decoding restores the text.

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

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

OPEN, CLOSE = "\ue000", "\ue001"
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOADED_AS_SAVED = {"AutoTokenizer": [None, "tokenizer.json"]}
"""transformers 5 loads Qwen's own splitting rules for every model of type qwen2, even if another tokenizer was saved.
With an entry for remote code it loads the saved class instead (and does not use the code itself)."""


def build_tokenizer(
    texts: Iterable[str], length: int, phrases: Sequence[str], pieces: Sequence[Sequence[str]] = ()
) -> PreTrainedTokenizerFast:
    """Builds a tokenizer with one token for every piece that occurs in `texts`, in order of first occurrence.

    Args:
        texts: texts that the vocabulary must cover.
        length (`int`): the model's context in tokens.
        phrases: texts that are one token in any context, such as ``<think>``.
        pieces: regular expressions of words with more than one token, each as the patterns of its tokens in order,
            such as ``("[A-Z]{2}", "[0-9]+")`` for words like ``AB12``.
    """
    normalizer, splitter = _normalizer(), _splitter(pieces)
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for character in [OPEN, CLOSE, *string.printable]:
        vocabulary.setdefault(character, len(vocabulary))
    for text in texts:
        for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
            vocabulary.setdefault(piece, len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True, byte_fallback=True))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, splitter, _decoder()
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
        self._normalizer, self._splitter = _normalizer(), _splitter(())

    def __call__(self, text: str, **options: object) -> dict[str, list[str]]:
        pieces = self._splitter.pre_tokenize_str(self._normalizer.normalize_str(text))
        return {"input_ids": [piece for piece, _ in pieces]}


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"(?<!\w)(?<!\d\.)(?=\w)"), OPEN),
            normalizers.Replace(Regex(r"(?<=\w)(?!\w)(?!(?<=\d)\.\d)"), CLOSE),
            normalizers.Replace(f"{CLOSE} {OPEN}", f"{CLOSE}{OPEN}"),
        ]
    )


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


def _decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(f"{CLOSE}{OPEN}", " "),
            decoders.Replace(OPEN, ""),
            decoders.Replace(CLOSE, ""),
        ]
    )
