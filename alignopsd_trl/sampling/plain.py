"""Samples from a model with fixed weights, without a trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from alignopsd_trl.common.patched import patched
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import BatchSampler, Responses
from alignopsd_trl.sampling.loop import LoopSampler
from alignopsd_trl.scoring.packing import why_plain
from alignopsd_trl.scoring.prefix_cache import PrefixCache

logger: Any = logging.get_logger(__name__)
PLAIN = {"top_p": (None, 1.0), "top_k": (None, 0), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
"""Values of sampling options that leave the model's distribution unchanged."""

_SHAPES_NOTHING = re.compile("_|(bos|eos|pad|decoder_start)_|transformers|use_cache|cache|max_|do_sample|output|return")
_COUNTS = ("top_k", "no_repeat_ngram_size", "min_new_tokens", "min_length")  # of which 1 is not neutral


def by_options_alone(model: Any) -> AbstractContextManager[None]:
    """Takes a model's own ``generation_config`` away while the context is open: ``generate`` would take from it all
    that its caller leaves open."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return patched(inner, generation_config=GenerationConfig())


def tell_left_out(model: Any, options: Mapping[str, Any]) -> None:
    """Says once what a model's own ``generation_config`` would change in sampling and these options don't."""
    own = model.generation_config.to_diff_dict().items()
    shaping = [(name, value) for name, value in own if value and not _SHAPES_NOTHING.match(name)]
    changed = [one for one in shaping if (one[1] != 1 or one[0] in _COUNTS) and options.get(one[0]) != one[1]]
    told = ", ".join(f"{name}={value!r}" for name, value in changed)
    if told:
        logger.warning_once(f"the model's generation_config ({told}) shapes no sampling: only the run's own options do")


def shares_prompts(model: PreTrainedModel) -> bool:
    """Returns whether equal prompts of this model may be encoded once."""
    return why_plain(model.config, attention_of(model)) is None


def attention_of(model: PreTrainedModel) -> str:
    return model.config._attn_implementation


def plain_sampler(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    end_ids: Sequence[int],
    options: Mapping[str, Any],
    max_tokens: int,
    batch_size: int,
) -> BatchSampler:
    """Makes a sampler of a model with fixed weights.

    Where the model and the options allow it, `LoopSampler` samples and encodes equal prefixes of prompts once.
    Otherwise transformers' ``generate`` samples.

    Args:
        end_ids: a response ends with one of them, or after ``max_tokens``.
        options: sampling options, ``temperature`` and those of `PLAIN`.
        batch_size: number of responses side by side; the loop takes as many as one call has.
    """
    tell_left_out(model, options)
    if any(options.get(name) not in values for name, values in PLAIN.items()) or not shares_prompts(model):
        return ModelGenerator(model, tokenizer, end_ids, max_tokens=max_tokens, batch_size=batch_size, **options)
    prefixes = PrefixCache(model, tokenizer.pad_token_id, attention_of(model))
    return LoopSampler(prefixes, options["temperature"], max_tokens, end_ids)


class ModelGenerator:
    """A transformers model as a `BatchSampler`.

    Args:
        model: the policy.
        tokenizer: pads prompts on the left.
        end_ids: a response ends with one of them.
        temperature: the sampling temperature; `0` decodes greedily.
        max_tokens: tokens of a response at most.
        batch_size: prompts of one call of ``generate``.
        options: of `PLAIN`, as in [`~trl.GRPOConfig`]. The model's own ``generation_config`` is ignored.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Sequence[int],
        temperature: float,
        max_tokens: int,
        batch_size: int = 64,
        **options: Any,
    ):
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        self.end_ids = list(end_ids)
        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, **options}
        self._options = GenerationConfig(
            **(sampled if temperature > 0 else {"repetition_penalty": options.get("repetition_penalty")}),
            max_new_tokens=max_tokens,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=self.end_ids,
            pad_token_id=tokenizer.pad_token_id,
        )

    @torch.no_grad()
    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        responses: list[list[int]] = []
        for first in range(0, len(prompts), self._batch_size):
            part = [list(prompt) for prompt in prompts[first : first + self._batch_size]]
            inputs: Any = self._tokenizer.pad(
                {"input_ids": part}, padding=True, padding_side="left", return_tensors="pt"
            )
            inputs = {name: inputs[name].to(self._model.device) for name in ("input_ids", "attention_mask")}
            generate: Any = self._model.generate
            with by_options_alone(self._model):
                sampled = generate(**inputs, generation_config=self._options)[:, inputs["input_ids"].size(1) :]
            responses += [self._cut(row) for row in sampled.tolist()]
        return Responses(responses, None)

    def _cut(self, tokens: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(tokens) if token in self.end_ids), len(tokens) - 1)
        return tokens[: end + 1]
