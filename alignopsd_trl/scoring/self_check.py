"""Compares signals that must be equal on a run's first rounds: a run with a wrong encoder, reference or sampler stops
with an explanation instead of training on it.

Bounds are mean absolute differences of log-probs per token. Measured differences: equal signals 1e-6 in float32 and
3e-4 to 5e-4 in bfloat16 (single tokens 0.05); a wrong reference 0.9; another prompt 0.12; a sampler with the weights of
an earlier step 0.5. In bfloat16 a deep model differs by 0.01 and more with the number of rows of a forward alone, so
that its bounds grow with this difference, which is measured. Where bfloat16 is emulated, rows hardly matter, and a
shared prefix alone makes 0.01.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch

from alignopsd_trl.common.errors import RunEnded
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.rollout.sampler import BatchSampler
from alignopsd_trl.scoring.model import ModelScorer
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.turns import TurnBatch

ROWS = 4
LEAST, ROUNDINGS, LARGEST = 0.02, 5.0, 0.1
"""A bound in bfloat16: at least, in differences by batching alone, and at most, which is below another prompt's."""
TEXT = "I have looked at the first page; the next thing to do is to open the cheapest item that fits."


class SelfCheckError(RunEnded):
    """Raised on all processes when two signals differ that must be equal."""


CHECKS = {
    "batching": (
        "responses scored together, padded, differ from the same scored one by one",
        "see that the model heeds the attention mask, adds no noise, and has positions that do not depend on the "
        "batch; bf16=False where it is rounding",
    ),
    "encoder": (
        "the encoder's vector of one text is not process 0's, or is no unit vector",
        "pass encoder as a name or path, which every process then loads whole, or, if you load it yourself, set "
        "fsdp_cpu_ram_efficient_loading: false and load it before the trainer is made",
    ),
    "reference": (
        "the reference's log-probs differ from the policy's before the first update",
        "pass the policy as the path of its weights, or set fsdp_cpu_ram_efficient_loading: false; beta=0.0 does "
        "without a reference",
    ),
    "shared_prefix": (
        "responses scored behind a shared or a kept prompt differ from the same scored plainly",
        "set share_prefixes=False",
    ),
    "empty_skill": (
        "the teacher under a prompt without a skill differs from the student",
        "keep disable_dropout=True and set share_prefixes=False",
    ),
    "sampler": (
        "the sampler's log-probs of its own responses, or of those of a teacher with other weights, differ from the "
        "trainer's",
        "see that the sampler runs the trained weights at the trainer's temperature and on all tokens, without top_p, "
        "top_k, min_p or penalties in generation_kwargs (a server: the same model, --logprobs-mode processed_logprobs, "
        "a connection for the weight push; colocated: vllm_model_impl, vllm_engine_options)",
    ),
}
"""By the name under which a difference is logged (``self_check/<name>``): what differs, and what to set."""


def bound(name: str, exact: bool, batching: float = 0.0) -> float:
    """Returns the largest difference that rounding explains. The bounds of an ``exact`` policy, of float32, are fixed;
    others depend on the measured difference by batching alone."""
    fixed = {"encoder": 1e-3, "sampler": 0.2} | ({} if exact else {"batching": LARGEST})
    return fixed.get(name, 1e-4 if exact else min(max(LEAST, ROUNDINGS * batching), LARGEST))


@dataclass(eq=False)
class SelfCheck:
    """The comparisons of one run. Every process makes the same calls.

    Args:
        reference: the frozen reference, `None` where there is none or it need not equal the policy.
        teacher: ``(batch, source, target)`` -> log-probs under privileged prompts, `None` for methods without.
        encoder: texts -> unit vectors, `None` for methods without.
        sampled: whether the sampler gives log-probs.
        exact: whether the policy computes in float32.
        thinks: an engine's teacher with weights of its own, as it scores and as it samples.
    """

    processes: ProcessGroup
    policy: ModelScorer
    reference: ModelScorer | None
    teacher: Callable[[TurnBatch, torch.Tensor, torch.Tensor], torch.Tensor] | None
    encoder: Callable[[Sequence[str]], torch.Tensor] | None
    _: KW_ONLY
    forwards: Forwards
    sampled: bool
    exact: bool
    thinks: tuple[ModelScorer, BatchSampler] | None = None

    def compare(self, batch: TurnBatch, number: int) -> dict[str, float]:
        """Makes all comparisons in the first round (``number`` 1), cheap ones later, and returns the largest difference
        over processes by name. In two rounds one beyond its bound raises `SelfCheckError` on all processes: only after
        an update does a sampler show whether it gets the weights."""
        few, found = unlike(batch, ROWS), {}
        rows, first = torch.arange(len(few)), number == 1
        if self.encoder is not None:
            row = self.encoder([TEXT])[0].float().cpu()
            known = torch.tensor(self.processes.each(row.tolist())[0])
            found["encoder"] = max(float((row - known).abs().max()), abs(float(row.norm()) - 1.0))
        plain = self._score(self.policy, few, rows) if first or self.sampled else torch.zeros(0)
        if self.sampled:
            found["sampler"] = _mean(plain - _sampler(few, plain), few)
        if first:
            found["batching"] = _mean(plain - self._score(self.policy, few, rows, budget=1), few)
        if first and self.reference is not None:
            found["reference"] = _mean(plain - self._score(self.reference, few, rows), few)
        if number <= 2:
            self._add_thinking(found, few)
        if first and self.teacher is not None:
            found["empty_skill"] = _mean(plain - self.teacher(few, rows, rows), few)
        if first and self.forwards.shared:
            found["shared_prefix"] = _mean(plain - self._score(self.policy, few, rows, shared=True), few)
        return self._judge(found, strict=number <= 2)

    def _add_thinking(self, found: dict[str, float | None], few: TurnBatch) -> None:
        """Adds the teacher's difference to the sampler's, from fresh responses of it."""
        if self.thinks is None:
            return
        model, sampler = self.thinks
        count = self.processes.agree(len(few))
        prompts = [list(turn.prompt_ids) for turn in few.turns]
        responses, known = sampler.respond([*prompts, *[[self.forwards.pad_id] * 2] * (count - len(few))])
        turns = [dataclasses.replace(one, response_ids=ids) for one, ids in zip(few.turns, responses, strict=False)]
        own = self._score(model, dataclasses.replace(few, turns=turns), torch.arange(len(few))).tolist()
        pairs = [pair for both in zip(own, known or [], strict=False) for pair in zip(*both, strict=False)]
        if gaps := [abs(one - other) for one, other in pairs if other is not None]:
            found["sampler"] = max(found.get("sampler") or 0.0, sum(gaps) / len(gaps))

    def _score(
        self, model: ModelScorer, few: TurnBatch, rows: torch.Tensor, shared: bool = False, budget: int | None = None
    ) -> torch.Tensor:
        """Scores the responses of rows, with ``shared`` behind their own beginnings, with which they then share their
        prompts. (Under another prompt they would be unlikely, and rounding would move them far more.)"""
        responses = [turn.response_ids for turn in few.turns]
        forwards = dataclasses.replace(self.forwards, budget=budget or self.forwards.budget)
        beginnings = [one[:-1] for one in responses] if shared else []
        scores = score_pairs(
            model,
            Ragged.of([turn.prompt_ids for turn in few.turns]),
            Ragged.of([*beginnings, *responses]),
            rows.repeat(1 + shared),
            torch.arange(len(beginnings) + len(responses)),
            forwards if shared else dataclasses.replace(forwards, shared=False, nested=False, prefixes=None),
        )
        return scores[len(beginnings) :]

    def _judge(self, found: Mapping[str, float | None], strict: bool) -> dict[str, float]:
        everywhere = self.processes.each(dict(found))
        batching = max((one.get("batching") or 0.0 for one in everywhere), default=0.0)
        lines, largest = [], {}
        for name in found:
            most, (differs, remedy) = bound(name, self.exact, batching), CHECKS[name]
            values = [one[name] for one in everywhere]
            known = {process: value for process, value in enumerate(values) if value is not None}
            largest[f"self_check/{name}"] = max(known.values(), default=0.0)
            bad = [process for process, value in known.items() if not value <= most]  # NaN is bad
            if bad and strict:
                where = ", ".join(f"{values[process]:.3g} on process {process}" for process in bad)
                lines.append(f"- {name}: {differs}: by {where} (bound {most:g}). To do: {remedy}.")
        if lines:
            lines = ["the run's signals are not sound:", *lines, "self_check=False trains regardless"]
            raise SelfCheckError("\n".join(lines))
        return largest


def unlike(batch: TurnBatch, count: int) -> TurnBatch:
    """Returns the ``count`` shortest turns with a response and the longest one, with their ordinary prompt as the
    privileged one."""
    size = [len(turn.prompt_ids) + len(turn.response_ids) for turn in batch.turns]
    rows = sorted((row for row, turn in enumerate(batch.turns) if turn.response_ids), key=size.__getitem__)
    rows = [*rows[:count], *rows[count:][-1:]]
    turns = [dataclasses.replace(batch.turns[row], privileged_ids=batch.turns[row].prompt_ids) for row in rows]
    width = max((len(turn.response_ids) for turn in turns), default=1)
    columns = {
        field.name: value[rows] if value.ndim == 1 else value[rows, :width]
        for field in dataclasses.fields(batch)
        if isinstance(value := getattr(batch, field.name), torch.Tensor)
    }
    return dataclasses.replace(batch, turns=turns, **columns | {"scored": None, "taught": None})


def _sampler(few: TurnBatch, like: torch.Tensor) -> torch.Tensor:
    """Returns the sampler's log-probs; missing ones, and those of older weights, are replaced by ``like``."""
    found = few.sampling_log_probs().to(like.device)
    stale = torch.tensor([turn.staleness > 0 for turn in few.turns], dtype=torch.bool, device=like.device)
    return torch.where(found.isnan() | stale[:, None], like[:, : found.size(1)], found)


def _mean(difference: torch.Tensor, few: TurnBatch) -> float | None:
    """Returns the mean absolute difference over the response tokens; `None` without any."""
    tokens = sum(len(turn.response_ids) for turn in few.turns)
    return float(difference.abs().sum()) / tokens if tokens else None
