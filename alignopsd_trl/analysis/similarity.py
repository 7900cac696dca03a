"""Computes H of every task from recorded reasoning traces and the run's encoder; records hold used pairs alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from alignopsd_trl.analysis.loading import Records, name_of, results_of, used_pairs
from alignopsd_trl.encoder import Encoder, load_encoder
from alignopsd_trl.methods.align_opsd.correspondence import cosine, eligibility

COLUMNS = [
    *("thinking", "credit_teacher_thinking", "credit_row"),
    *("credit_sources", "credit_source_similarities", "credit_source_weights"),
]
TOLERANCE = 0.02  # other hardware and batch sizes change a cosine in bfloat16 by less


@dataclass(frozen=True)
class TaskPairs:
    """One task of one step.

    Attributes:
        turns: its m turns, in canonical order.
        similarity: ``(m, m)`` H, ``[source, target]``.
        eligible: ``(m, m)`` bool.
        used: ``(u, 2)`` source and target of the pairs in training, as rows of ``turns``.
        weights: ``(u,)`` of these pairs.
    """

    turns: pd.DataFrame
    similarity: np.ndarray
    eligible: np.ndarray
    used: np.ndarray
    weights: np.ndarray


def encoder_of(run: Records, encoder: str | Encoder | None = None) -> Encoder:
    """Returns the given encoder, or the one that ``results.json`` names.

    Raises:
        ValueError: if there is neither.
    """
    found = encoder or (results_of(run).get("encoder") or {}).get("name")
    if found is None:
        raise ValueError(f"{name_of(run)} does not say which encoder made its matches; pass it: --encoder lexical")
    return load_encoder(found)


def task_pairs(run: Records, frame: pd.DataFrame, encoder: Encoder) -> Iterator[TaskPairs]:
    """Yields every task with reasoning traces of the teacher, by step, from a frame with `COLUMNS`.

    Raises:
        ValueError: if the encoder does not reproduce the recorded similarities.
    """
    for _, turns in frame[frame.credit_teacher_thinking.notna()].groupby(["step", "task"], sort=True):
        turns = turns.reset_index(drop=True)
        teacher, student = turns.credit_teacher_thinking.fillna(""), turns.thinking.fillna("")
        similarity = cosine(*(encoder(texts.tolist()).float().cpu() for texts in (teacher, student))).numpy()
        rollout = torch.tensor(turns.groupby("rollout").ngroup().to_numpy())
        said = [torch.tensor((side != "").to_numpy()) for side in (teacher, student)]
        pairs = used_pairs(turns)
        used = pairs[["at_source", "at"]].to_numpy(int)
        recorded, weights = (pairs[f"credit_source_{name}"].to_numpy(float) for name in ("similarities", "weights"))
        if (apart := np.abs(similarity[used[:, 0], used[:, 1]] - recorded).max(initial=0)) > TOLERANCE:
            raise ValueError(
                f"encoder {encoder.name!r} gives similarities that are up to {apart:.2f} from those that "
                f"{name_of(run)} recorded; pass the encoder that the run was trained with: --encoder"
            )
        yield TaskPairs(turns, similarity, eligibility(rollout, *said).numpy(), used, weights)
