"""Options of WebShop."""

from __future__ import annotations

from dataclasses import dataclass

from alignopsd_trl.environments.options import Options, option
from alignopsd_trl.environments.webshop.engine.nouns import Nouns


@dataclass(frozen=True)
class WebShopOptions(Options):
    """Options of `alignopsd_trl.environments.webshop.suite`, explained by the ``help`` of each field."""

    data_dir: str | None = option(
        None, "Folder of the official files; the embedded catalogue if None.", described=False
    )
    data_variant: str | None = option(None, "Which files of the folder, e.g. '_1000'.")
    num_products: int | None = option(None, "Look at the first so many raw entries only.", least=1)
    cache_dir: str | None = option(
        None, "Where prepared catalogues live; see `alignopsd_trl.environments.cache.cache_folder`.", described=False
    )
    lenient: bool = option(False, "Repair or skip records on which the reference would fail.")
    human_goals: bool = option(False, "The instructions of people instead of synthetic ones.")
    nouns: str | Nouns = option(
        "standin", "'standin', 'spacy', a JSON table title -> nouns, or a function.", described=False
    )
    template: str = option("paper", "Of the prompt: 'paper', 'compact', 'tiny' or a jinja file.")
    observation: str = option(
        "text",
        "'compact' leaves out pieces that repeat the list of actions.",
        choices=("text", "compact"),
    )
    history_length: int = option(2, "Past turns that a prompt shows.", least=0)
    max_turns: int = option(15, "Turns after which the caller ends an episode.", least=1)
    results_per_page: int = option(10, "Products on a page of results (10 in the reference).", least=1)
    reward: str = option(
        "won", "'won': won_reward for a score of 1.0, else 0; 'score': the score.", choices=("won", "score")
    )
    won_reward: float = option(10.0, "See reward.")
    validity: str = option(
        "format",
        "'admissible': `Step.valid` is false for an action that was not on offer.",
        choices=("format", "admissible"),
    )
    show_attributes: bool = option(False, "Offer the page of a product's attributes.")
    specials: bool = option(True, "Understand the searches <r>, <c> name and <q> phrase.")
    splits: str = option(
        "canonical",
        "'canonical': one goal list, train and test disjoint; 'released': one goal list a group, as the paper family's "
        "code has it, where the splits overlap.",
        choices=("canonical", "released"),
    )
    split_seed: int = option(0, "Base seed of the released splits.")
