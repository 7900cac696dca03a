"""Sampling and scoring with a causal language model, without a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.evaluation.play import ModelGenerator
from alignopsd_trl.fidelity.speculative import Guesses, sample
from alignopsd_trl.policy.packing import Packed, why_plain
from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.policy.scoring import Padded
from alignopsd_trl.reading import Reader
from alignopsd_trl.rollout import Responses

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PLAIN = {"top_p": (None, 1.0), "top_k": (None, 0), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
"""Options of sampling that leave the model's distribution as it is."""


def shares_prompts(model: PreTrainedModel) -> bool:
    """Whether equal prompts of this model may be encoded once."""
    return why_plain(model.config, _attention(model)) is None


def _attention(model: PreTrainedModel) -> str:
    return model.config._attn_implementation


class Sampler:
    """A model as a `rollout.BatchSampler`.

    Where the model and the options allow it, equal beginnings of prompts are encoded once and tokens are guessed ahead
    (`fidelity.speculative`). The encoded beginnings are kept between calls, so the weights must not change. Elsewhere
    transformers' ``generate`` samples.

    Args:
        options: of sampling: ``temperature`` and those of `PLAIN`.
        batch_size: responses side by side.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        options: Mapping[str, Any],
        max_tokens: int,
        batch_size: int = 256,
    ):
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        self._temperature, self._max_tokens = options["temperature"], max_tokens
        self._generator = ModelGenerator(model, tokenizer, max_tokens=max_tokens, batch_size=batch_size, **options)
        self.end_ids = self._generator.end_ids
        plain = all(options.get(name) in values for name, values in PLAIN.items())
        self._shares = plain and shares_prompts(model)
        self._prefixes = PrefixCache(model, tokenizer.pad_token_id, _attention(model)) if self._shares else None
        self._guesses = Guesses()

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        order = sorted(range(len(prompts)), key=lambda place: (len(prompts[place]), prompts[place]))
        responses: list[list[int]] = [[] for _ in prompts]
        for first in range(0, len(order), self._batch_size):
            chosen = order[first : first + self._batch_size]
            part = [list(prompts[place]) for place in chosen]
            sampled = self._shared(part) if self._shares else self._generator.respond(part).ids
            for place, response in zip(chosen, sampled, strict=True):
                responses[place] = response
        return Responses(responses, None)

    def _shared(self, prompts: list[list[int]]) -> list[list[int]]:
        return sample(
            self._model,
            prompts,
            temperature=self._temperature,
            max_tokens=self._max_tokens,
            end_ids=self.end_ids,
            pad_id=self._tokenizer.pad_token_id,
            attention=_attention(self._model),
            prefixes=self._prefixes,
            guesses=self._guesses,
        )


class Scorer:
    """A model as a `ScoringModel`, at the sampling temperature."""

    def __init__(self, model: PreTrainedModel, temperature: float):
        self._model, self._temperature = model, temperature
        self.device = model.device

    @torch.no_grad()
    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor:
        return self._log_probs(response_logits(self._model, prompt, response), response.ids)

    @torch.no_grad()
    def shared(self, rows: Packed) -> torch.Tensor:
        hidden = self._model.base_model(
            input_ids=rows.ids,
            attention_mask=rows.attention_mask(_attention(self._model)),
            position_ids=rows.position,
            use_cache=False,
        ).last_hidden_state
        labelled = rows.labels != -100
        logits = self._model.get_output_embeddings()(hidden[labelled])
        scores = torch.zeros(rows.labels.shape, device=self.device)
        scores[labelled] = self._log_probs(logits, rows.labels[labelled])
        return scores

    @torch.no_grad()
    def largest(self, prompt: Padded, response: Padded, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = response_logits(self._model, prompt, response).topk(count)
        return found.indices, found.values.float()

    def _log_probs(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        scaled = logits.float() / self._temperature
        return scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def response_logits(model: torch.nn.Module, prompt: Padded, response: Padded) -> torch.Tensor:
    """The logits ``(rows, T, V)`` that predict responses."""
    output = model(
        input_ids=torch.cat([prompt.ids, response.ids], dim=1),
        attention_mask=torch.cat([prompt.mask, response.mask], dim=1),
        logits_to_keep=response.ids.size(1) + 1,
    )
    return output.logits[:, :-1]
