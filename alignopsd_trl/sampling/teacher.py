"""Samplers of a teacher whose weights are not the policy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from alignopsd_trl.chat.reading import Reader
from alignopsd_trl.rollout import BatchSampler, Responses
from alignopsd_trl.scoring.teacher_weights import TeacherWeights


@dataclass(frozen=True)
class TeacherSampler:
    """A [`~alignopsd_trl.rollout.BatchSampler`] that samples from the teacher's weights.

    Args:
        sampler: the policy's sampler, with a prefix cache that it does not share.
        weights: of the teacher.
    """

    sampler: BatchSampler
    weights: TeacherWeights

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        with self.weights.in_place():
            return self.sampler.respond(prompts, until)


@dataclass(frozen=True)
class SilentTeacher:
    """A [`~alignopsd_trl.rollout.BatchSampler`] that raises `ValueError`: its teacher can only score, since vLLM holds
    the policy's weights alone."""

    kind: str

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        raise ValueError(
            f"teacher_model_kind={self.kind!r} can't think or play with use_vllm=True, whose engine has the policy's "
            "weights alone; use teacher_model_kind='live', 'base' with vllm_teacher_addresses, or use_vllm=False"
        )
