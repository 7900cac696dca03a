"""Multi-turn rollouts: `player` plays episodes side by side, `driver` resumes each as soon as it can go on, `prompting`
makes the prompt of each turn, and a `sampler` samples the response."""

from __future__ import annotations

from alignopsd_trl.rollout.driver import Lockstep
from alignopsd_trl.rollout.metrics import (
    conversation_metrics,
    privileged_metrics,
    rollout_metrics,
    staleness_metrics,
)
from alignopsd_trl.rollout.player import ENDS, Player, make_player
from alignopsd_trl.rollout.prompting import SkillSource, no_skills, skill_of
from alignopsd_trl.rollout.sampler import (
    AnySampler,
    BatchSampler,
    Continuous,
    Request,
    RequestFailed,
    Response,
    Responses,
    Sampler,
    SamplerDown,
    SortedByLength,
)
from alignopsd_trl.rollout.siblings import SiblingsDiffer, check_openings, episode_seed, episode_seeds

__all__ = [
    "ENDS",
    "AnySampler",
    "BatchSampler",
    "Continuous",
    "Lockstep",
    "Player",
    "Request",
    "RequestFailed",
    "Response",
    "Responses",
    "Sampler",
    "SamplerDown",
    "SiblingsDiffer",
    "SkillSource",
    "SortedByLength",
    "check_openings",
    "conversation_metrics",
    "episode_seed",
    "episode_seeds",
    "make_player",
    "no_skills",
    "privileged_metrics",
    "rollout_metrics",
    "skill_of",
    "staleness_metrics",
]
