"""The policy's forward, with its vocabulary head only on positions that are read, and the scores of given responses
under the policy, its reference or its teacher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from trl.trainer import utils as trl_utils
from trl.trainer.utils import use_adapter

from alignopsd_trl.common.patched import patched
from alignopsd_trl.scoring.model import Before, ModelScorer, Padded, head_in_tiles
from alignopsd_trl.scoring.packing import Packed
from alignopsd_trl.scoring.teacher import TeacherWeights
from alignopsd_trl.scoring.trl_trainer import policy_of, why_not_shared, without_checkpointing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from alignopsd_trl.scoring.trl_trainer import Trainer


def head_on_labels(device: torch.device) -> AbstractContextManager[None]:
    """Limits TRL's fused head to labelled positions. Where Triton runs the head does so by itself; on CPU and MPS it
    would also compute every position of the prompt and the padding."""
    if device.type not in ("cpu", "mps"):
        return contextlib.nullcontext()
    return patched(trl_utils, _use_triton=lambda device: True)


def logits_at(model: PreTrainedModel, tokens: torch.Tensor) -> AbstractContextManager[None]:
    """Patches a model so that its forward returns the logits of some tokens alone, with gradient.

    Args:
        tokens: ``(positions, K)`` ids, row by row. A head that is no plain matrix, as one with an adapter, computes all
            logits.
    """
    matrix: Any = model.get_output_embeddings()
    plain = isinstance(matrix, torch.nn.Linear) and matrix.weight.is_floating_point()  # else quantised

    def pick(head: Callable, hidden: torch.Tensor, first: int) -> torch.Tensor:
        hidden, wanted = hidden[:, 0], tokens[first : first + len(hidden)]
        if not plain:
            return head(hidden).gather(-1, wanted)
        found = torch.einsum("nd,nkd->nk", hidden, torch.nn.functional.embedding(wanted, matrix.weight))
        return found if matrix.bias is None else found + matrix.bias[wanted]

    return head_in_tiles(model, pick)


def padded_behind(trainer: Trainer, model: torch.nn.Module, labels: torch.Tensor, **inputs: Any) -> Any:
    """Runs the model on left-padded rows ``(R, T)`` with all padding moved behind, so that positions are those of the
    unpadded rows in every model. This is exact, since no token attends to later ones.

    A model that needs none gets no mask, for the fastest attention kernel without repeated keys for grouped heads.
    Masks are needed for sliding windows, layers of other kinds, positions that depend on the row's length, and flash
    attention, which packs tokens by the mask.
    """
    mask, column = inputs.pop("attention_mask"), torch.arange(labels.size(1), device=labels.device)
    first = mask.argmax(dim=1, keepdim=True)
    forth, back = (column + first) % len(column), (column[:-1] - first) % len(column)
    inputs |= {"input_ids": inputs["input_ids"].gather(1, forth), "labels": labels.gather(1, forth)}
    output = model(**inputs, **({"attention_mask": mask.gather(1, forth)} if why_not_shared(trainer) else {}))
    for name in ("log_probs", "entropy"):  # (R, T - 1): each position predicts the next token
        if (values := getattr(output, name, None)) is not None:
            values = values[:, 1 - len(column) :].gather(1, back.clamp(max=len(column) - 2))  # behind virtual tokens
            setattr(output, name, values.masked_fill(labels[:, 1:] == -100, 0.0))
    return output


class WatchedModel:
    """The policy as TRL's loss calls it, with labels only on tokens that the loss reads. The environment's texts
    between the turns of a row need no vocabulary head.

    Args:
        read: ``(rows, L)`` for the rows' last L tokens, not 0 where the loss reads them.

    Attributes:
        log_probs, entropies: ``(rows, L)`` of the last forward, with gradient; 0 where the loss does not read them.
    """

    def __init__(self, model: Callable, read: torch.Tensor):
        self._model, self._read = model, read
        self.log_probs = self.entropies = torch.zeros(read.shape, device=read.device)

    def __call__(self, labels: torch.Tensor, **inputs: Any) -> Any:
        length = self._read.size(1)
        labels = labels.clone()
        labels[:, -length:].masked_fill_(self._read == 0, -100)
        output = self._model(labels=labels, **inputs)
        self.log_probs, self.entropies = output.log_probs[:, -length:], output.entropy[:, -length:]
        return output


class PolicyScorer(ModelScorer):
    """The trained policy, or its frozen reference, or its teacher.

    Args:
        trainer: has the model, autocast and fused language-model head.
        teacher: weights that score in place of the policy's.
    """

    def __init__(self, trainer: Trainer, reference: bool = False, teacher: TeacherWeights | None = None):
        self._trainer = trainer
        self._reference, self._teacher = reference, teacher

    @property
    def device(self) -> torch.device:
        return self._trainer.accelerator.device

    @property
    def _model(self) -> PreTrainedModel:
        trainer = self._trainer
        return trainer.ref_model if self._reference and trainer.ref_model is not None else trainer.model

    @property
    def _inner(self) -> PreTrainedModel:
        return policy_of(self._trainer)

    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor:
        ids, mask = torch.cat([prompt.ids, response.ids], dim=1), torch.cat([prompt.mask, response.mask], dim=1)
        model, length = partial(padded_behind, self._trainer, self._model), response.ids.size(1)
        with self._scoring():
            return self._trainer._get_per_token_logps_and_entropies(model, ids, mask, length)[0].float()

    def shared(self, rows: Packed, before: Before | None = None) -> torch.Tensor:
        with self._scoring():
            return self._forward(rows, before, shift_labels=rows.labels, fused_lm_head=True).log_probs.float()

    @contextlib.contextmanager
    def _scoring(self) -> Generator[None]:
        with (
            torch.no_grad(),
            without_checkpointing(self._trainer),
            self._adapter(),
            contextlib.nullcontext() if self._teacher is None else self._teacher.in_place(),
            self._trainer.accelerator.autocast(),
            head_on_labels(self.device),
        ):
            yield

    def _adapter(self) -> AbstractContextManager:
        """Makes a LoRA policy the reference: without its adapter, or with the adapter's frozen copy ``ref`` if there is
        one. Changes nothing where the policy itself scores or the reference is a model of its own."""
        if not self._reference or self._trainer.ref_model is not None:
            return contextlib.nullcontext()
        model = policy_of(self._trainer)
        return use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)
