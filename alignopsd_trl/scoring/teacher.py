"""The privileged view of the policy: the same weights under prompts with the skill in their slot.

It thinks and scores without gradients, with the weights that played the rollouts. Every process must make the same
calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from alignopsd_trl.common.strategies import held, part_of, reshard
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import BatchSampler
from alignopsd_trl.scoring.model import Mix, ModelScorer
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, States, largest_logits, score_pairs
from alignopsd_trl.turns import NO_THOUGHT, Thought, TurnBatch

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(eq=False)
class PrivilegedTeacher:
    """A `Teacher` (`methods.base`) over one policy snapshot.

    Args:
        sampler: of the privileged thinking (its own token limit, the rollout's temperature).
        encoder: texts -> unit vectors ``(n, D)``; `None` if the method needs none.
        forwards: of scoring; its ``prefixes`` are the prompt cache of ``sampler``, `None` where that samples in another
            process.
        gather: concatenates one-dimensional tensors of all processes.
        phases: opens a phase, by its name, whose seconds are counted.
        states: hidden states that `score` keeps for `vocabulary`; `None` where nobody asks for the latter.
    """

    model: ModelScorer
    sampler: BatchSampler
    tokenizer: PreTrainedTokenizerBase
    encoder: Callable[[Sequence[str]], torch.Tensor] | None
    _: KW_ONLY
    forwards: Forwards
    gather: Callable[[torch.Tensor], torch.Tensor]
    phases: Callable[[str], AbstractContextManager[None]]
    reader: Reader
    states: States | None = None

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """As in `Teacher`, and 0 for turns that are not in `TurnBatch.scored`. For turns that are not in
        `TurnBatch.taught` log-probs are the policy's own if these are known, so that every gap is 0."""
        source, target = source.cpu(), target.cpu()
        wanted = torch.ones(len(target), dtype=torch.bool) if batch.scored is None else batch.scored.cpu()[target]
        wanted = wanted if batch.taught is None else wanted & batch.taught.cpu()[target]
        with self.phases("scoring"):
            scores = score_pairs(
                self.model,
                Ragged.of([turn.privileged_ids for turn in batch.turns]),
                Ragged.of([turn.response_ids for turn in batch.turns]),
                source[wanted],
                target[wanted],
                self.forwards,
                keep=self.states,
            )
        if batch.taught is None or batch.student_log_probs is None:
            result = scores.new_zeros((len(target), batch.policy_mask.size(1)))
        else:
            result = torch.where(batch.taught[:, None], 0.0, batch.student_log_probs)[target.to(scores.device)]
        result[wanted.to(result.device)] = scores[:, : result.size(1)]
        return result

    def vocabulary(
        self, batch: TurnBatch, count: int, sources: torch.Tensor | None = None, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As in `Teacher`, and 0 for turns that are not in `TurnBatch.taught`."""
        with self.phases("scoring"):
            ids, logits = largest_logits(
                self.model,
                Ragged.of([turn.privileged_ids for turn in batch.turns]),
                Ragged.of([turn.response_ids for turn in batch.turns]),
                min(count, self.model.vocabulary),
                self.forwards,
                sources=sources,
                mix=mix,
                among=batch.taught,
                known=self.states,
            )
        width = batch.policy_mask.size(1)
        return ids[:, :width], logits[:, :width]

    def thoughts(self, batch: TurnBatch, rows: torch.Tensor | None = None, actions: bool = True) -> list[Thought]:
        """As in `Teacher`, and blank at turns that are not in `TurnBatch.taught`."""
        places = list(range(len(batch))) if rows is None else rows.tolist()
        known = [place for place in places if batch.taught is None or batch.taught[place]]
        turns = [batch.turns[place] for place in known]
        width = self.forwards.agree(len(turns))
        if not width:
            return [NO_THOUGHT] * len(places)
        if self.forwards.prefixes is not None and batch.scored is not None:
            wanted = batch.scored.tolist()
            scored = [turn for place, turn in zip(known, turns, strict=True) if wanted[place]]
            self.forwards.prefixes.keep([turn.privileged_ids[:-1] for turn in scored])
        with self.phases("privileged_thinking"):
            filler = [[self.tokenizer.pad_token_id] * 2] * (width - len(turns))  # sampling is a collective
            prompts = [*(turn.privileged_ids for turn in turns), *filler]
            responses = self.sampler.respond(prompts, None if actions else self.reader).ids[: len(turns)]
        if not turns:  # `batch_decode` of no response returns one text
            return [NO_THOUGHT] * len(places)
        texts = self.tokenizer.batch_decode(responses, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        read, views = self.reader.read, zip(turns, responses, texts, strict=True)
        thoughts = [read(turn.privileged_ids, response, text).thought for turn, response, text in views]
        thoughts = thoughts if actions else [replace(thought, action="") for thought in thoughts]
        found = dict(zip(known, thoughts, strict=True))
        return [found.get(place, NO_THOUGHT) for place in places]

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """Returns ``(n, D)`` float32 unit vectors on the scoring device; a zero row for an empty text."""
        assert self.encoder is not None, "a method that declares no encoder cannot ask for it"
        with self.phases("encoding"):
            return self.encoder(texts).to(self.model.device)


# Weights of a teacher that differ from the policy's: other values of the trained parameters, with LoRA the adapter's
#
# They are swapped into the model while the teacher plays, thinks or scores, so that every back end serves the teacher.


class TeacherWeights(TrainerCallback):
    """Values of a model's trained parameters, by default a copy of the current ones.

    If training later shards a model that was whole (FSDP2, ZeRO-3), the values are sharded alike, from the first
    process's copy.

    Args:
        model: whole on each process, or in ZeRO-3's shards.
        given: parameters by name whose values are used without a copy; by default the model's are copied.

    Attributes:
        adds_nothing: whether they are those of a fresh LoRA adapter, so that they are the model without it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        given: Mapping[str, torch.Tensor] | None = None,
        accelerator: Accelerator | None = None,
    ):
        self._model: Any = model
        self._accelerator = accelerator
        self._trained = _trained(model)
        source = self._trained if given is None else given
        self._whole = {name for name in self._trained if held(source[name]) is source[name]}
        values = {name: held(source[name]).detach() for name in self._trained}
        self._values = {name: value.clone() for name, value in values.items()} if given is None else values
        self.adds_nothing = self._whole == self._values.keys() and _adds_nothing(self._values)

    def on_train_begin(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        reshard(self._model, self._accelerator)
        self._trained = _trained(self._model)
        for name, parameter in self._trained.items():
            part, value = held(parameter), self._values[name]
            spread = name in self._whole and part is not parameter
            self._values[name] = part_of(value, parameter) if spread else value.to(part.device, part.dtype)
        self._whole.clear()

    @contextlib.contextmanager
    def in_place(self) -> Generator[None]:
        """Swaps the values into the model while the context is open; it must not be trained meanwhile. Only FSDP2's
        shards are copied, since FSDP2 keeps pointers to their memory. A LoRA adapter that adds nothing is switched off
        instead, which spares its products."""
        with self._model.disable_adapter() if self.adds_nothing else self.swapped():
            yield

    @contextlib.contextmanager
    def swapped(self) -> Generator[None]:
        """As `in_place`, but the model's parameters have the values, whatever they are: a push reads them."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        reshard(self._model, self._accelerator)
        for name, parameter in self._trained.items():
            here, other = held(parameter), self._values[name]
            if isinstance(parameter, DTensor):
                kept = here.clone()
                here.copy_(other)
                other.copy_(kept)
            else:
                here.data, self._values[name] = other, here.data


def _trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _adds_nothing(values: Mapping[str, torch.Tensor]) -> bool:
    """Whether the values are those of a fresh LoRA adapter: in each pair of matrices A and B, all of B is 0."""
    plain = all(".lora_A." in name or ".lora_B." in name for name in values)
    return bool(values) and plain and not any(value.any() for name, value in values.items() if ".lora_B." in name)
