"""The text of each token of a response as a reader sees it. The joined texts are the whole response."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BROKEN = "\ufffd"  # a decoder's text for the bytes of an incomplete character


class TokenTexts:
    """Texts of tokens, special tokens included; each pair of neighbours is decoded once.

    A token is decoded together with the one before it, since many decoders add or strip blanks depending on it. A
    character of several tokens stands at the first of them and the others are empty.

    Args:
        tokenizer: of the policy.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer: Any = tokenizer  # `decode` is annotated as giving a list too
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Returns one text per id."""
        texts: list[str] = []
        before: tuple[int, ...] = ()
        for broken, run in groupby(ids, key=lambda token: _BROKEN in self._decoded((token,))):
            members = tuple(run)
            for part in [members] if broken else [(token,) for token in members]:
                texts += [self._behind(before, part), *[""] * (len(part) - 1)]
                before = part[-1:]
        return texts

    def _behind(self, before: tuple[int, ...], part: tuple[int, ...]) -> str:
        return self._decoded(before + part)[len(self._decoded(before)) :]

    def _decoded(self, ids: tuple[int, ...]) -> str:
        if ids not in self._known:
            self._known[ids] = self._tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        return self._known[ids]
