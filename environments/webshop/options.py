"""What can be set about a WebShop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from environments.webshop.nouns import Nouns

_CHOICES = {
    "observation": ("text", "compact"),
    "reward": ("won", "score"),
    "validity": ("format", "admissible"),
    "splits": ("canonical", "released"),
}


@dataclass(frozen=True)
class WebShopOptions:
    """Options of `environments.webshop.suite`.

    Args:
        data_dir: folder of the official files; the embedded catalogue if None.
        data_variant: which files of the folder, e.g. ``"_1000"``.
        num_products: look at the first so many raw entries only.
        cache_dir: where prepared catalogues live (default: ``ALIGNOPSD_CACHE`` or the user's cache folder).
        lenient: repair or skip records on which the reference would fail.
        human_goals: the instructions of people instead of synthetic ones.
        nouns: ``"standin"``, ``"spacy"``, a JSON table title -> nouns, or a function.
        template: ``"paper"``, ``"compact"``, ``"tiny"`` or a template file.
        observation: ``"text"``, or ``"compact"``: without pieces that repeat the list of actions.
        history_length: past turns that a prompt shows.
        max_turns: turns after which the caller ends an episode.
        results_per_page: products on a page of results (10 in the reference).
        reward: ``"won"``: `won_reward` for a score of 1.0, else 0; ``"score"``: the score.
        won_reward: see `reward`.
        validity: ``"format"``, or ``"admissible"``: `Step.valid` is false for an action not on offer.
        show_attributes: offer the page of a product's attributes.
        specials: understand the searches ``<r>``, ``<c> name`` and ``<q> phrase``.
        splits: ``"canonical"``: one goal list, train and test disjoint; ``"released"``: one goal list a group, as the
            paper family's code has it, where the splits overlap.
        split_seed: base seed of the released splits.
    """

    data_dir: str | None = None
    data_variant: str | None = None
    num_products: int | None = None
    cache_dir: str | None = None
    lenient: bool = False
    human_goals: bool = False
    nouns: str | Nouns = "standin"
    template: str = "paper"
    observation: str = "text"
    history_length: int = 2
    max_turns: int = 15
    results_per_page: int = 10
    reward: str = "won"
    won_reward: float = 10.0
    validity: str = "format"
    show_attributes: bool = False
    specials: bool = True
    splits: str = "canonical"
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        for name, least in (("history_length", 0), ("max_turns", 1), ("results_per_page", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def described(self) -> Mapping[str, Any]:
        """The options that shape results, as plain values."""
        shaped = {name: value for name, value in asdict(self).items() if name not in ("data_dir", "cache_dir", "nouns")}
        return {**shaped, "data": "official files" if self.data_dir else "embedded catalogue"}
