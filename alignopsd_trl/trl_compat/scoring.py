"""Scores given responses under the policy, its reference or its teacher, with the trainer's own models."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from transformers import Cache
from trl.trainer.utils import use_adapter

from alignopsd_trl.scoring.packing import Packed
from alignopsd_trl.scoring.teacher_forcing import Mix, Padded
from alignopsd_trl.scoring.teacher_weights import TeacherWeights
from alignopsd_trl.trl_compat.head import as_causal, head_in_tiles, head_on_labels
from alignopsd_trl.trl_compat.model import attention_of, policy_of, text_config, without_checkpointing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from alignopsd_trl.trl_compat import Trainer


class PolicyScorer:
    """The trained policy (or its frozen reference, or its teacher) as a `ScoringModel`.

    Args:
        trainer: has the model, autocast and fused language-model head.
        reference: whether to score with the reference model in place of the policy.
        teacher: weights that score in place of the policy's.
    """

    def __init__(self, trainer: Trainer, reference: bool = False, teacher: TeacherWeights | None = None):
        self._trainer = trainer
        self._reference, self._teacher = reference, teacher

    @property
    def device(self) -> torch.device:
        return self._trainer.accelerator.device

    @property
    def vocabulary(self) -> int:
        return text_config(self._trainer).vocab_size

    @property
    def _model(self) -> PreTrainedModel:
        trainer = self._trainer
        return trainer.ref_model if self._reference and trainer.ref_model is not None else trainer.model

    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor:
        ids, mask = _joined(prompt, response)
        model, length = as_causal(self._trainer, self._model), response.ids.size(1)
        with self._scoring(), head_on_labels(self.device):
            return self._trainer._get_per_token_logps_and_entropies(model, ids, mask, length)[0].float()

    def shared(self, rows: Packed, before: Cache | None = None) -> torch.Tensor:
        known = {} if before is None else {"past_key_values": before}
        mask = rows.attention_mask(attention_of(self._trainer), 0 if before is None else before.get_seq_length())
        with self._scoring(), self._trainer.accelerator.autocast(), head_on_labels(self.device):
            output = self._model(
                input_ids=rows.ids,
                attention_mask=mask,
                position_ids=None if mask is None else rows.position,  # with gaps transformers builds a mask
                shift_labels=rows.labels,
                fused_lm_head=True,
                **known,
            )
        return output.log_probs.float()

    def largest(
        self, prompt: Padded, response: Padded, count: int, views: int = 1, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (ids, mask), length, found = _joined(prompt, response), response.ids.size(1), []

        def pick(logits: torch.Tensor, first: int) -> torch.Tensor:
            position = torch.arange(first, first + len(logits), device=logits.device)
            one = logits[:, 0] if mix is None else mix(position // (length + 1), logits)
            values, tokens = one.topk(count)
            found.append(tokens)
            return values

        trainer = self._trainer
        with self._scoring(), trainer.accelerator.autocast(), head_in_tiles(policy_of(trainer), pick, views):
            values = trainer.model(input_ids=ids, attention_mask=mask, logits_to_keep=length + 1).logits[:, :-1]
        return torch.cat(found).unflatten(0, (len(ids) // views, length + 1))[:, :-1], values.float()

    @contextlib.contextmanager
    def _scoring(self) -> Generator[None]:
        teacher = contextlib.nullcontext() if self._teacher is None else self._teacher.in_place()
        with torch.no_grad(), without_checkpointing(self._trainer), self._adapter(), teacher:
            yield

    def _adapter(self) -> AbstractContextManager:
        """Switches a LoRA policy's adapter off for the reference, or to its frozen copy where one was passed in."""
        if not self._reference or self._trainer.ref_model is not None:
            return contextlib.nullcontext()
        model = policy_of(self._trainer)
        return use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)


def _joined(prompt: Padded, response: Padded) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and attention mask of whole rows."""
    return torch.cat([prompt.ids, response.ids], dim=1), torch.cat([prompt.mask, response.mask], dim=1)
