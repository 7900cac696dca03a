"""The privileged view of the policy: the same weights under prompts with the skill in their slot.

It thinks and scores without gradients, with the weights that played the rollouts. Every process must make the same
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace

import torch
from transformers import PreTrainedTokenizerBase

from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import BatchSampler
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, Mix, ScoringModel, States, largest_logits, score_pairs
from alignopsd_trl.turns import NO_THOUGHT, Thought, TurnBatch


@dataclass(eq=False)
class PrivilegedTeacher:
    """A `Teacher` over one policy snapshot.

    Args:
        sampler: of the privileged thinking (its own token limit, the rollout's temperature).
        encoder: texts -> unit vectors ``(n, D)``; `None` if the method needs none.
        forwards: of scoring; its ``prefixes`` are the prompt cache of ``sampler``, `None` where that samples in another
            process.
        gather: concatenates one-dimensional tensors of all processes.
        phases: opens a phase, by its name, whose seconds are counted.
        states: hidden states that `score` keeps for `vocabulary`; `None` where nobody asks for the latter.
    """

    model: ScoringModel
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
        """Returns log-probs ``(P, L)``: of the response of turn ``target[p]`` under the privileged prompt of turn
        ``source[p]``. They are 0 for turns that are not in `TurnBatch.scored`. For turns that are not in
        `TurnBatch.taught` they are the policy's own if these are known, so that every gap is 0."""
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
        """Returns ids and values ``(M, L, count)`` of the privileged view's largest logits along each turn's own
        response; with ``sources``, of its mixture with the views of these turns; 0 for turns that are not
        `TurnBatch.taught`."""
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
        """Samples the thinking and, with ``actions``, the action of the privileged view at each turn, or at the turns
        ``rows``, in one generation; blank at turns that are not `TurnBatch.taught`."""
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
