"""Samples and scores with a causal language model, without a trainer."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from alignopsd_trl.sampling.loop import attention_of
from alignopsd_trl.scoring.packing import CACHE_NAME, Packed
from alignopsd_trl.scoring.teacher_forcing import Before, Mix, Padded


class ModelScorer:
    """A `ScoringModel` of one model at the sampling temperature; `PolicyScorer` is the one of a trainer."""

    def __init__(self, model: PreTrainedModel, temperature: float):
        self._model, self._temperature = model, temperature
        self.device, self.vocabulary = model.device, model.config.get_text_config().vocab_size

    @torch.no_grad()
    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor:
        return self._log_probs(self._response_logits(prompt, response), response.ids)

    @torch.no_grad()
    def shared(self, rows: Packed, before: Before | None = None) -> torch.Tensor:
        return self._labelled(rows, self.states(rows, before))

    @torch.no_grad()
    def shared_with_states(self, rows: Packed, before: Before | None = None) -> torch.Tensor:
        states = self.states(rows, before)
        return torch.cat([self._labelled(rows, states).unsqueeze(-1), states], dim=-1)

    def _labelled(self, rows: Packed, states: torch.Tensor) -> torch.Tensor:
        labelled = rows.labels != -100
        scores = torch.zeros(rows.labels.shape, device=self.device)
        logits = self._model.get_output_embeddings()(states[labelled])
        scores[labelled] = self._log_probs(logits, rows.labels[labelled])
        return scores

    @torch.no_grad()
    def states(self, rows: Packed, before: Before | None = None) -> torch.Tensor:
        cache = None if before is None else before()
        cached = 0 if cache is None else cache.get_seq_length()
        return self._model.base_model(
            input_ids=rows.ids,
            attention_mask=rows.attention_mask(attention_of(self._model), cached),
            position_ids=rows.position,
            use_cache=cache is not None,
            **({} if cache is None else {CACHE_NAME: cache}),
        ).last_hidden_state

    @torch.no_grad()
    def largest(self, states: torch.Tensor, count: int, mix: Mix | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._model.get_output_embeddings()(states.to(self._model.dtype)).transpose(1, 2)  # (n, T, views, V)
        rows = torch.arange(len(logits), device=logits.device).repeat_interleave(logits.size(1))
        mixed = logits[:, :, 0] if mix is None else mix(rows, logits.flatten(0, 1)).unflatten(0, logits.shape[:2])
        found = mixed.topk(count)
        return found.indices, found.values.float()

    def _log_probs(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        scaled = logits.float() / self._temperature
        return scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)

    def _response_logits(self, prompt: Padded, response: Padded) -> torch.Tensor:
        """Computes the logits ``(rows, T, V)`` that predict responses."""
        output = self._model(
            input_ids=torch.cat([prompt.ids, response.ids], dim=1),
            attention_mask=torch.cat([prompt.mask, response.mask], dim=1),
            logits_to_keep=response.ids.size(1) + 1,
        )
        return output.logits[:, :-1]
