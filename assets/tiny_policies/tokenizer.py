"""The tokenizer of the shipped policies: that of a task of one's own, with product identifiers in two pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerFast

from alignopsd_trl.commands.own_task.warm_start import tiny as tokenizer
from alignopsd_trl.commands.own_task.warm_start.tiny import CLOSE, OPEN

__all__ = ["CLOSE", "OPEN", "build_tokenizer"]

IDENTIFIER = (r"\d{5}", rf"(?<={OPEN}\d{{5}})\d{{5}}")
"""A number of ten digits: shelf and product."""


def build_tokenizer(
    texts: Iterable[str], length: int, phrases: Sequence[str], pieces: Sequence[Sequence[str]] = ()
) -> PreTrainedTokenizerFast:
    """As the function of this name in `alignopsd_trl.commands.own_task.warm_start.tiny`, which says what it takes."""
    return tokenizer.build_tokenizer(texts, length, phrases, (IDENTIFIER, *pieces))
