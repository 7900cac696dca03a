"""The batch dict that TRL's loss reads, with one row per turn or run of turns, and its sub-chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Credit
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.training.recorder import Recorder
from alignopsd_trl.turns import Turn, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import TrainedPolicy

TARGET = "target/"
VOCABULARY = "vocabulary_ids"
TAUGHT = "taught"
_UNREAD = {"ref_per_token_logps": -1e4}
"""Fill values other than 0 for positions that the loss does not read. A reference of 0 would make exp(reference -
log-prob) of an unlikely token infinite, and infinity times the mask's 0 is NaN."""


@dataclass(frozen=True)
class Layout:
    """The places of the M turns in rows of prompt and completion.

    Attributes:
        prompts, completions: token ids of each row. A completion holds the responses of its turns and, between them,
            the environment's texts.
        row, start, length: ``(M,)`` int64, row of each turn's response, its first place in the completion, and its
            number of tokens.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    row: torch.Tensor
    start: torch.Tensor
    length: torch.Tensor

    @classmethod
    def of(cls, batch: TurnBatch, merge: bool) -> Layout:
        """Makes one row per turn. With ``merge`` turns of a trajectory share a row while each prompt begins with the
        prompt and response before it. Such a row is as long as its last turn alone."""
        prompts: list[list[int]] = []
        completions: list[list[int]] = []
        row, start = [], []
        rollout = batch.rollout.tolist() if merge else []  # else the host would wait for nothing
        last: dict[int, int] = {}  # row -> the turn at its end
        for number, turn in enumerate(batch.turns):
            place, earlier = len(prompts), _earlier(number, turn, rollout) if merge else None
            if earlier is not None and last[row[earlier]] == earlier and turn.extends(batch.turns[earlier]):
                place = row[earlier]
                completions[place] += turn.prompt_ids[len(prompts[place]) + len(completions[place]) :]
            else:
                prompts.append(turn.prompt_ids)
                completions.append([])
            row.append(place)
            last[place] = number
            start.append(len(completions[place]))
            completions[place] += turn.response_ids
        length = [len(turn.response_ids) for turn in batch.turns]
        return cls(prompts, completions, *(torch.tensor(one, dtype=torch.int64) for one in (row, start, length)))

    def __len__(self) -> int:
        return len(self.prompts)

    def place(self, column: torch.Tensor, shape: tuple[int, int], fill: float = 0) -> torch.Tensor:
        """Returns a turns' column ``(M, L, ...)`` in ``shape`` (rows, tokens), with ``fill`` outside responses."""
        turn, token = (torch.arange(column.size(1)) < self.length[:, None]).nonzero(as_tuple=True)
        places = torch.stack([turn, token, self.row[turn], self.start[turn] + token])
        turn, token, row, target = places.to(column.device)
        result = column.new_full((*shape, *column.shape[2:]), fill)
        result[row, target] = column[turn, token]
        return result


def _earlier(number: int, turn: Turn, rollout: Sequence[int]) -> int | None:
    """Returns the turn that a turn may continue: the one before it in its rollout, or the one that an agent's own
    request continues (``info["follows"]``)."""
    follows = turn.info.get("follows", turn.number - 1)
    place = -1 if follows is None else number - (turn.number - follows)
    return place if place >= 0 and rollout[place] == rollout[number] else None


def collate_rows(
    batch: TurnBatch,
    per_token: dict[str, torch.Tensor],
    rows: int,
    pad_id: int,
    end_id: int,
    layout: Layout | None = None,
) -> dict[str, torch.Tensor]:
    """Returns prompts, responses and per-token columns as tensors of ``rows`` rows.

    The layout's rows come first; the rest are dummy rows (one prompt token, one end token, loss mask 0) that give all
    processes the same number of forwards.

    Args:
        per_token: ``(M, L)`` or ``(M, L, K)`` columns, filled with zeros (a reference: -1e4) in dummy rows and between
            the turns of a row. ``(M, 1)`` columns have one number per turn.
        layout: of the turns in rows; one row per turn by default.

    Returns:
        ``prompt_ids, prompt_mask`` ``(rows, P)`` left-padded, ``completion_ids, completion_mask, tool_mask`` and the
        columns ``(rows, T)``; ``tool_mask`` is 0 on the environment's texts.
    """
    layout = layout or Layout.of(batch, merge=False)
    dummies = rows - len(layout)
    device = batch.response_ids.device
    prompts = Ragged.of(layout.prompts + [[end_id]] * dummies)
    responses = Ragged.of(layout.completions + [[end_id]] * dummies)
    prompt_ids, prompt_mask = prompts.padded(pad_id, "left")
    response_ids, response_mask = responses.padded(pad_id, "right")
    shape = rows, response_ids.size(1)
    result = {
        "prompt_ids": prompt_ids.to(device),
        "prompt_mask": prompt_mask.to(device, torch.int64),
        "completion_ids": response_ids.to(device),
        "completion_mask": response_mask.to(device, torch.int64),
        "tool_mask": layout.place(batch.policy_mask.to(torch.int64), shape),
    }
    for name, column in per_token.items():
        fill = _UNREAD.get(name, 0)
        if column.size(1) == 1 and len(layout) == len(batch):
            result[name] = torch.cat([column, column.new_full((dummies, *column.shape[1:]), fill)])
        else:
            wide = column.expand_as(batch.policy_mask) if column.size(1) == 1 else column
            result[name] = layout.place(wide, shape, fill)
    return result if response_ids.size(1) > 1 else {name: _two_wide(name, value) for name, value in result.items()}


def _two_wide(name: str, value: torch.Tensor) -> torch.Tensor:
    """Adds a second column of padding for TRL's metrics; see `select_and_trim`."""
    if name in ("prompt_ids", "prompt_mask"):
        return value
    return torch.nn.functional.pad(value, (0, 0) * (value.dim() - 2) + (0, 1))


@dataclass(eq=False)
class RowMaker:
    """Makes TRL's rows from a batch and its credit, equally many on each process.

    Args:
        recorder: logs the difference of the sampler's log-probs from the policy's.
    """

    config: AlignOPSDConfig
    processes: ProcessGroup
    pad_id: int
    end_id: int
    policy: TrainedPolicy
    recorder: Recorder

    def rows(self, batch: TurnBatch, credit: Credit, coefficient: float) -> dict[str, torch.Tensor]:
        """Returns one row per turn, or one per run of turns where rows are merged.

        Args:
            coefficient: weight of the policy term; multiplies the advantages.
        """
        parts = self.config.steps_per_generation
        layout = Layout.of(batch, merge=self.config.merges_rows)
        columns = {"advantages": credit.advantages * coefficient}
        if self.policy.needs_old_log_probs:
            assert batch.student_log_probs is not None, "`Scorer.batch` scores where the update asks"
            columns["old_per_token_logps"] = batch.student_log_probs
        if batch.reference_log_probs is not None:
            columns["ref_per_token_logps"] = batch.reference_log_probs
        columns |= {TARGET + name: values for name, values in credit.targets.items()}
        if credit.targets and batch.taught is not None:
            columns[TARGET + TAUGHT] = batch.taught[:, None].float()
        columns |= self.policy.sampling_columns(batch, self.recorder.metrics)
        count = -(-max(self.processes.agree(len(layout)), 1) // parts) * parts
        rows = collate_rows(batch, columns, count, self.pad_id, self.end_id, layout)
        rows["num_items_in_batch"] = self.processes.total(batch.policy_mask.sum())
        return rows


def live_rows(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns ``(rows,)`` bool, true for rows with an optimised token that has an advantage or is taught."""
    live = inputs["advantages"] != 0
    if any(name.startswith(TARGET) for name in inputs):
        live = live | (inputs.get(TARGET + TAUGHT, torch.ones_like(inputs["advantages"])) != 0)
    return (live & (inputs["completion_mask"] * inputs["tool_mask"] != 0)).any(dim=1)


def sub_chunks(
    inputs: dict[str, torch.Tensor], live: torch.Tensor, tokens: int, agree: Callable[[int], int]
) -> list[dict[str, torch.Tensor]]:
    """Cuts the live rows, longest first, into sub-chunks of about equally many padded tokens. All processes get equally
    many sub-chunks with equally many rows; short rows that are not live fill up where needed.

    Args:
        live: ``(rows,)`` bool.
        tokens: maximum of padded tokens per sub-chunk; a longer row is a sub-chunk by itself.
        agree: all-reduce max of a number. All processes hold equally many rows.
    """
    counted = torch.stack([inputs["prompt_mask"].sum(1), inputs["completion_mask"].sum(1)])
    prompt, response, needed = torch.cat([counted, live.to(counted).unsqueeze(0)]).tolist()
    sizes, needed = list(zip(prompt, response, strict=True)), list(map(bool, needed))
    longest_first = sorted(range(len(sizes)), key=lambda row: -sum(sizes[row]))
    least = len(cut_evenly([sizes[row] for row in longest_first if needed[row]], tokens))
    count = agree(max(least, 1))
    chosen = keep_at_least(longest_first, needed, count)
    cuts = cut_evenly([sizes[row] for row in chosen], tokens, min(count, len(chosen)))
    parts = [select_and_trim(inputs, torch.tensor(chosen[first:last])) for first, last in cuts]
    return [with_rows(part, agree(len(part["completion_ids"]))) for part in parts]


def keep_at_least(order: Sequence[int], needed: Sequence[bool], count: int) -> list[int]:
    """Returns the needed rows in their order, filled up to ``count`` with the last of the other rows."""
    others = [row for row in order if not needed[row]]
    missing = max(count - (len(order) - len(others)), 0)
    kept = set(others[max(len(others) - missing, 0) :])
    return [row for row in order if needed[row] or row in kept]


def with_rows(part: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Repeats a sub-chunk's last row, masked out of the loss, up to ``count`` rows. TRL gathers one number per row for
    its metrics, so every process needs equally many."""
    rows = len(part["completion_ids"])
    index = torch.arange(count, device=part["completion_ids"].device).clamp(max=rows - 1)
    result = {name: value if value.dim() == 0 else value[index] for name, value in part.items()}
    result["tool_mask"][rows:] = 0
    return result


def cut_evenly(sizes: list[tuple[int, int]], tokens: int, at_least: int = 0) -> list[tuple[int, int]]:
    """Cuts rows of (prompt, response) lengths into runs of about equally many padded tokens. Returns the first row of
    each run and the row after its last one.

    Args:
        tokens: maximum of a run; a longer row is a run by itself.
        at_least: minimum number of runs, at most the number of rows.
    """
    cuts = _cut(sizes, tokens)
    count = max(len(cuts), at_least)
    low, high = 0, tokens
    while high - low > max(tokens // 64, 1):
        middle = (low + high) // 2
        tried = _cut(sizes, middle)
        if len(tried) <= count:
            high, cuts = middle, tried
        else:
            low = middle
    while len(cuts) < count:
        most = max(range(len(cuts)), key=lambda number: cuts[number][1] - cuts[number][0])
        first, last = cuts[most]
        cuts[most : most + 1] = [(first, (first + last) // 2), ((first + last) // 2, last)]
    return cuts


def _cut(sizes: list[tuple[int, int]], tokens: int) -> list[tuple[int, int]]:
    cuts, first, longest = [], 0, (0, 0)
    for row, (prompt, response) in enumerate(sizes):
        longest = max(longest[0], prompt), max(longest[1], response)
        if row > first and (row - first + 1) * sum(longest) > tokens:
            cuts.append((first, row))
            first, longest = row, (prompt, response)
    return [*cuts, (first, len(sizes))] if sizes else []


def select_and_trim(inputs: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Selects rows and trims them to their longest prompt and response. Scalars are copied; ``(rows, 1)`` columns keep
    their width."""
    width = inputs["completion_ids"].size(1)
    rows = rows.to(inputs["completion_ids"].device)
    part = {name: value if value.dim() == 0 else value[rows] for name, value in inputs.items()}
    longest = torch.stack([part[name].sum(1).max() for name in ("prompt_mask", "completion_mask")]).tolist()
    prompt, response = max(longest[0], 1), max(longest[1], 2)  # TRL's metrics take the unmasked mean of a single column
    for name, value in part.items():
        if name in ("prompt_ids", "prompt_mask"):
            part[name] = value[:, value.size(1) - prompt :]
        elif value.dim() > 1 and value.size(1) == width:
            part[name] = value[:, :response]
    return part
