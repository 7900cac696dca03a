"""The matched views of a measurement of `alignopsd measure`, each with and without the skill in its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from alignopsd_trl.commands.measure.commands import read_measure
from alignopsd_trl.commands.measure.kept import decoded
from alignopsd_trl.commands.measure.setup import MeasureSession, environment_preset, prepare
from alignopsd_trl.environments.base import Suite, View
from alignopsd_trl.methods.align_opsd.correspondence import correspond
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
from alignopsd_trl.methods.align_opsd.rectification import aligned_log_probs, rectify
from alignopsd_trl.turns import Trajectory, Turn, TurnBatch
from assets.encoder.thoughts import WORLDS
from assets.tiny_policies.demonstrations import episode

OPTIONS = AlignOPSDOptions()
Decision = tuple[str, ...]


@dataclass(frozen=True)
class Views:
    """A training round's turns, and what its responses are worth under which prompts.

    Args:
        turns (`list[Turn]`):
            M.
        won (`list[bool]`):
            Of each turn's episode.
        decisions (`list[Decision]`):
            What each turn stood before, see `assets.encoder.thoughts`; the first two say how far it has come.
        mask, student, own (`torch.Tensor`):
            ``(M, L)``: real tokens, log-probs under the ordinary prompt, under the privileged one.
        source, target (`torch.Tensor`):
            ``(P,)`` int64 pairs of siblings: those that AlignOPSD retains, and all of the same decision.
        similarity (`torch.Tensor`):
            ``(P,)`` H.
        retained, same (`torch.Tensor`):
            ``(P,)`` bool.
        skilled, ordinary (`torch.Tensor`):
            ``(P, L)`` the target's response under the source's privileged prompt, and under its ordinary one.
    """

    turns: list[Turn]
    won: list[bool]
    decisions: list[Decision]
    mask: torch.Tensor
    student: torch.Tensor
    own: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    similarity: torch.Tensor
    retained: torch.Tensor
    same: torch.Tensor
    skilled: torch.Tensor
    ordinary: torch.Tensor

    def gaps(self, keep: torch.Tensor, certain: bool = False) -> dict[str, torch.Tensor]:
        """Token gaps ``(M, L)`` at the paper's settings with some pairs as sources; turns without one keep their own.

        Args:
            keep: ``(P,)`` bool.
            certain: whether they count as H = 1.

        Returns:
            ``own``; ``aligned``, the mixture of matched views against the student; its two parts, ``history`` (the
            sources' ordinary prompts against the turn's) and ``skill`` (the skill's effect at the sources);
            ``rectified``, and ``source_baseline``, the blend with ``skill`` in place of the matched views.
        """
        chosen = keep.nonzero().squeeze(1)
        chosen = chosen[self.similarity[chosen].argsort(descending=True, stable=True)]
        chosen = chosen[self.target[chosen].argsort(stable=True)]
        row = self.target[chosen]
        slot = torch.arange(len(row)) - torch.searchsorted(row, row)
        sources = torch.full((len(self.turns), _width(slot)), -1)
        similarity = torch.zeros(sources.shape)
        sources[row, slot] = self.source[chosen]
        similarity[row, slot] = torch.ones(len(row)) if certain else self.similarity[chosen]
        shape = {"sources": sources, "similarity": similarity, "threshold": OPTIONS.similarity_threshold}
        shape |= {"temperature": OPTIONS.aggregation_temperature, "alpha_max": OPTIONS.alpha_max}
        ordinary = self.ordinary[chosen]
        paper = rectify(self.student, self.own, self.skilled[chosen], **shape)
        history = aligned_log_probs(self.student, ordinary, sources, paper.weights, OPTIONS.aggregation)
        skill, alpha = paper.aligned - history, paper.alpha.float()[:, None]
        return {
            "own": paper.identity_gap,
            "aligned": paper.aligned - self.student,
            "history": history - self.student,
            "skill": skill,
            "rectified": paper.rectified_gap,
            "source_baseline": torch.where(alpha > 0, paper.identity_gap.lerp(skill, alpha), paper.identity_gap),
        }

    def evidence(self, gap: torch.Tensor) -> torch.Tensor:
        """``(M,)`` its mean over a turn's tokens."""
        return torch.where(self.mask, gap, 0.0).sum(1) / self.mask.sum(1).clamp_min(1)


def _width(slot: torch.Tensor) -> int:
    return int(slot.max()) + 1 if len(slot) else 1


def ask(folder: Path, model: str, encoder: str | None = None) -> Iterator[Views]:
    """Asks the privileged view about the episodes of a measurement again, as it was asked then.

    Args:
        folder: what ``--output`` was.
        model: what ``--model`` was.
        encoder: in place of the measurement's own.

    Raises:
        ValueError: if the folder holds no measurement, the weights are not those that were measured, or nobody knows
            this environment's decisions.
    """
    identity = folder / "parts" / "identity.json"
    if missing := [name for name in ("parts/identity.json", "fidelity.json") if not (folder / name).is_file()]:
        raise ValueError(f"{folder} is no --output of a finished alignopsd measure: it has no {missing[0]}")
    known = json.loads(identity.read_text(encoding="utf-8"))
    if known["environment"] not in WORLDS:
        raise ValueError(f"{folder} is of {known['environment']}; decisions are known in {', '.join(WORLDS)}")
    own = json.loads((folder / "fidelity.json").read_text(encoding="utf-8"))["encoder"]
    asked = {
        "model": model,
        "environment": known["environment"],
        "environment_options": json.dumps(known["environment_options"] or {}),
        "methods": "align_opsd",
        "slots": known["slots"],
        "skill_bank": known["skill_bank"],
        "encoder": encoder or own,
        "dtype": "float32",
        "device": "cpu",
        "output": folder,
    }
    flags = [word for name, value in asked.items() if value for word in (f"--{name}", str(value))]
    session = prepare(read_measure([*flags, "--quiet"]))
    if session.identity()["weights"] != known["weights"]:
        raise ValueError(f"--model {model} has other weights than those that were measured in {folder}")
    kept = decoded(json.loads((folder / "parts" / "played.json").read_text(encoding="utf-8")))
    played = [one for one in kept if not one.failed]
    per = environment_preset(known["environment"]).get("tasks_per_round", known["tasks"])
    order = list(dict.fromkeys(one.task for one in played))
    try:
        for first in range(0, len(order), per):
            chosen = [one for one in played if one.task in order[first : first + per]]
            torch.manual_seed(known["seed"] + first)
            decisions = _decisions(chosen, session.suite, WORLDS[known["environment"]][1])
            yield _views(session, chosen, decisions)
    finally:
        session.player.environments.close()


def _views(session: MeasureSession, played: Sequence[Trajectory], decided: Mapping[int, Decision]) -> Views:
    batch, teacher = TurnBatch.of(played, session.tokenizer.pad_token_id), session.teacher
    student, rows = session.score(batch), torch.arange(len(batch))
    thoughts = teacher.thoughts(batch)
    found = correspond(thoughts, torch.ones(len(batch), dtype=torch.bool), batch, teacher.encode, session.config)
    decisions = [decided[id(turn)] for turn in batch.turns]
    names: dict[Decision, int] = {}
    number = torch.tensor([names.setdefault(one, len(names)) for one in decisions])
    pairs = []
    for task in found.tasks:
        retained = (found.sources[task.rows][None] == task.rows[:, None, None]).any(-1)
        same = (number[task.rows][:, None] == number[task.rows][None]) & task.eligible
        source, target = (retained | same).nonzero(as_tuple=True)
        at = (source, target)
        pairs.append((task.rows[source], task.rows[target], task.similarity[at], retained[at], same[at]))
    source, target, similarity, retained, same = map(torch.cat, zip(*pairs, strict=True))
    won = {id(turn): bool(one.won) for one in played for turn in one.turns}
    return Views(
        batch.turns,
        [won[id(turn)] for turn in batch.turns],
        decisions,
        batch.policy_mask,
        student,
        teacher.score(batch, rows, rows),
        source,
        target,
        similarity,
        retained,
        same,
        teacher.score(batch, source, target),
        teacher.score(_without_skills(batch), source, target),
    )


def _without_skills(batch: TurnBatch) -> TurnBatch:
    """With each turn's ordinary prompt as its privileged one."""
    return replace(batch, turns=[replace(turn, privileged_ids=turn.prompt_ids) for turn in batch.turns])


def _decisions(
    played: Sequence[Trajectory], suite: Suite, decide: Callable[[View], tuple[Any, ...]]
) -> dict[int, Decision]:
    """The decision of each turn, by the turn's id: what was said is replayed."""
    environment, found = suite.factory(), {}
    for one in played:
        said = iter([turn.response_text for turn in one.turns])
        views, _, _ = episode(environment, one.row, lambda view, said=said: next(said, ""))
        found |= {id(turn): tuple(map(repr, decide(view))) for turn, view in zip(one.turns, views, strict=True)}
    return found
