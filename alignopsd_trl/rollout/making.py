"""Makes the player of training, evaluations and measurements from the same options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.chat.options import PlayOptions
from alignopsd_trl.chat.prompts import Renderer
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.sampler import AnySampler


def make_player(
    environments: ValidatedBatch,
    tokenizer: PreTrainedTokenizerBase,
    sampler: AnySampler,
    end_ids: Sequence[int],
    options: PlayOptions,
    **own: Any,
) -> Player:
    """Makes a player of environments that plays by options.

    Args:
        own: further fields of [`Player`].
    """
    renderer = Renderer(tokenizer, environments.prompt, options)
    return Player(environments, renderer, sampler, tokenizer, end_ids, max_turns=options.max_turns, **own)
