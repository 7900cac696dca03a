"""Writes trajectories and credit traces as parquet: one row per turn, one file per rollout round and process.

All files of a run have the same columns and types, so that any reader can read the folder as one table.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from alignopsd_trl.common.errors import UserError
from alignopsd_trl.common.files import json_line, replacement
from alignopsd_trl.turns import Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONG_TEXT = 200  # characters
_BROKEN = "\ufffd"  # a decoder's text for the bytes of an incomplete character

_TEXT, _WHOLE, _NUMBER, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
SCHEMA = pa.schema(
    {
        "run": _TEXT,
        "step": _WHOLE,
        "task": _TEXT,
        "task_id": _TEXT,
        "rollout": _TEXT,
        "privileged": _FLAG,
        "turn": _WHOLE,
        "category": _TEXT,
        "task_text": _TEXT,
        "reward": _NUMBER,
        "won": _FLAG,
        "score": _NUMBER,
        "stop": _TEXT,
        "message": _TEXT,
        "skill_ids": pa.list_(_TEXT),
        "skill_text": _TEXT,
        "prompt": _TEXT,
        "response": _TEXT,
        "thinking": _TEXT,
        "action": _TEXT,
        "action_valid": _FLAG,
        "observation": _TEXT,
        "prompt_tokens": _WHOLE,
        "response_tokens": _WHOLE,
        "truncated": _FLAG,
        "history_shortened": _FLAG,
        "staleness": _WHOLE,
        "turn_reward": _NUMBER,
        "milestone": _TEXT,
        "info": _TEXT,
        "token_texts": pa.list_(_TEXT),
    }.items()
)
"""The columns of every record. A method's trace follows as ``credit_<name>``. ``token_texts`` and the trace's
``token_*`` columns have one value per response token and are filled by training alone."""

_OF_EPISODE = "task rollout privileged category task_text reward won score message skill_text"
_OF_TURN = "action action_valid observation truncated history_shortened staleness milestone"
"""Columns with the value of the episode's or the turn's attribute of this name."""

_KNOWN_COLUMNS = {
    "sources": pa.list_(_WHOLE),
    "source_similarities": pa.list_(_NUMBER),
    "source_weights": pa.list_(_NUMBER),
    "token_identity_gaps": pa.list_(pa.float16()),
    "token_rectified_gaps": pa.list_(pa.float16()),
    "teacher_thinking": _TEXT,
    "teacher_action": _TEXT,
    "privileged_text": _TEXT,
    "span": _WHOLE,
    "cut": _TEXT,
    "divergence_counts": _FLAG,
}
"""Types of trace columns that may be empty in a whole round, so that their values do not show the type."""

_MEASURED = ("row", "weight", "tokens", "rho", "advantage", "identity_gap", "rectified_gap", "divergence")
_TYPES = {one.name: one.type for one in SCHEMA} | {
    f"credit_{name}": kind for name, kind in (dict.fromkeys(_MEASURED, _NUMBER) | _KNOWN_COLUMNS).items()
}


def turn_records(
    trajectories: Sequence[Trajectory],
    step: int,
    trace: Mapping[str, Any] | None = None,
    run: str | None = None,
    texts: Callable[[Sequence[int]], list[str]] | None = None,
) -> list[dict[str, Any]]:
    """Makes one flat record per turn.

    Args:
        trajectories: all trajectories, failed ones too.
        step: training step of the rollout.
        trace: the method's columns (`Credit.trace`), each with one value for each row of the `TurnBatch`. `Turn.row` is
            a turn's row there. Column ``name`` becomes ``credit_<name>``.
        run: id of the run.
        texts: makes the text of each token id, for the column ``token_texts``; without it that column is empty.
    """
    columns = {name: _column(values) for name, values in (trace or {}).items()}
    records = []
    for trajectory in trajectories:
        rewarded = list(zip(trajectory.turns, trajectory.turn_rewards, strict=True))
        for turn, reward in rewarded or [(None, None)]:  # an episode without turns has one row, too
            row = None if turn is None or not columns else turn.row
            credit = {f"credit_{name}": None if row is None else values[row] for name, values in columns.items()}
            tokens = {"token_texts": texts(turn.response_ids)} if texts is not None and turn is not None else {}
            own = {} if turn is None else {**_turn_columns(turn), "turn_reward": reward}
            found = {"run": run} | _trajectory_columns(trajectory, step) | own | tokens
            records.append({name: found[name] for name in SCHEMA.names if name in found} | credit)
    return records


def trace_types(trace: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Returns the type of each column of a trace, null where its values do not show it."""
    return {name: _KNOWN_COLUMNS.get(name) or pa.array(_column(one)).type for name, one in trace.items()}


def merge_types(several: Sequence[Mapping[str, pa.DataType]]) -> dict[str, pa.DataType]:
    """Merges the types of all processes' traces. The order of columns does not depend on the processes with turns."""
    merged = pa.unify_schemas([pa.schema(types) for types in several], promote_options="permissive")
    return {name: merged.field(name).type for name in sorted(merged.names)}


def record_schema(types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Extends `SCHEMA` by the columns of a trace; a null type becomes float64."""
    own = [pa.field(f"credit_{name}", _NUMBER if pa.types.is_null(kind) else kind) for name, kind in types.items()]
    return pa.schema([*SCHEMA, *own])


def _turn_columns(turn: Turn) -> dict[str, Any]:
    said = turn.info.items()  # without long texts, which the column of observations holds
    facts = {name: value for name, value in said if not (isinstance(value, str) and len(value) > LONG_TEXT)}
    return {name: getattr(turn, name) for name in _OF_TURN.split()} | {
        "turn": turn.number,
        "prompt": turn.prompt_text,
        "response": turn.response_text,
        "thinking": turn.thought.thinking,
        "prompt_tokens": len(turn.prompt_ids),
        "response_tokens": len(turn.response_ids),
        "info": _as_json(facts),
    }


def _as_json(facts: Mapping[str, Any]) -> str:
    """Returns strict JSON. An object of the environment's whose text can't be made does not lose the turn."""
    try:
        return json_line(facts)
    except Exception as error:  # of any kind, from the object's class
        return json_line({"unreadable": type(error).__name__})


def _trajectory_columns(trajectory: Trajectory, step: int) -> dict[str, Any]:
    return {name: getattr(trajectory, name) for name in _OF_EPISODE.split()} | {
        "step": step,
        "task_id": str(trajectory.row["task_id"]) if "task_id" in trajectory.row else None,
        "turn": None,
        "stop": trajectory.stop.value if trajectory.stop else None,
        "skill_ids": list(trajectory.skill_ids),
    }


def _column(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, torch.Tensor) else list(values)


def write_records(
    path: str | os.PathLike, records: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None
) -> None:
    """Writes a parquet file atomically. Without a schema, columns and types come from the records."""
    if schema is not None:
        table = pa.Table.from_pylist(list(records), schema=schema)
    else:
        names = list(dict.fromkeys(name for record in records for name in record))
        table = pa.table({name: [record.get(name) for record in records] for name in names})
    with replacement(path) as partial:
        pq.write_table(table, partial)


ORDER = ["step", "task", "rollout", "turn"]
"""The columns that name a turn; records are sorted by them."""


def read_records(folder: str | os.PathLike, columns: Sequence[str] | None = None, run: str | None = None) -> Any:
    """Reads all parquet files of a folder as one `pandas.DataFrame`, sorted by `ORDER`.

    Args:
        folder: the files' folder.
        columns: columns to read, where a file has them; all by default. `ORDER` and the run's id are always read.
        run: id of the run; by default that of the first file.

    Raises:
        FileNotFoundError: if there are no files.
        ValueError: if a file is damaged, of another run, or holds what another one holds; names the file.
    """
    import pandas as pd

    files = sorted(Path(folder).glob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"no trajectories in {folder}; a run writes them with save_trajectories=True")
    wanted = None if columns is None else list(dict.fromkeys([*ORDER, "run", *columns]))
    frames = {file: read_file(file, wanted) for file in files}
    for file, frame in frames.items():
        ids = sorted(frame["run"].dropna().unique()) if "run" in frame else []
        run = run or next(iter(ids), None)
        if other := [one for one in ids if one != run]:
            raise ValueError(f"{file} is of another run ({other[0]}; this one is {run}); move it away")
    places = [
        frame[ORDER].assign(round=(re.findall(r"_round(\d+)", file.name) or ["1"])[0], file=str(file))
        for file, frame in frames.items()
    ]
    twice = pd.concat(places, ignore_index=True)
    if not (again := twice[twice.duplicated([*ORDER, "round"])]).empty:
        raise ValueError(f"{again.file.iloc[0]} holds turns of step {again.step.iloc[0]} a second time; move it away")
    return pd.concat(frames.values(), ignore_index=True).sort_values(ORDER, ignore_index=True)


_MOST = {"won": 1.0, "score": sys.float_info.max, "reward": sys.float_info.max}


def read_file(file: Path, wanted: Sequence[str] | None = None) -> Any:
    """Reads one file, or those of the wanted columns that it has; raises as `read_records`."""
    import pandas as pd

    with damage_named(file):
        types = pq.read_schema(file)
        there = None if wanted is None else [name for name in wanted if name in types.names]
        frame = pd.read_parquet(file, columns=there)
    problems = [f"lacks the column {name!r}" for name in ORDER if name not in types.names]
    problems += [f"has rows without a {name!r}" for name in ORDER[:3] if name in frame and frame[name].isna().any()]
    for one in types:
        if (usual := _TYPES.get(one.name)) is not None and _kind(one.type) not in ("null", _kind(usual)):
            problems.append(f"has the column {one.name!r} as {one.type}, which is {usual} in a run's records")
    for name, most in _MOST.items() if not problems else ():
        if name in frame and (frame[name].astype(float).abs() > most).any():
            problems.append(f"has a value of {name!r} beyond {most:g}")
    if problems:
        raise ValueError(f"{file} {problems[0]}; move it away to go on without it")
    return frame


class Damaged(UserError):
    """Raised for a file that can't be read."""


@contextmanager
def damage_named(file: Path) -> Generator[None]:
    """Replaces an error of pyarrow about a file by one sentence that names it, a `Damaged`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise Damaged(f"{file} is damaged ({reason}); move it away to go on without it") from None


def _kind(type_: pa.DataType) -> str:
    """Returns what may stand for a type in records that another version wrote, or that were written without types."""
    return next((kind for kind in ("list", "null", "string", "binary") if kind in str(type_)), "number")


class TokenTexts:
    """Texts of tokens as a reader sees them, special tokens included; joined they are the whole response.

    A token is decoded together with the one before it, since many decoders add or strip blanks depending on it. A
    character of several tokens stands at the first of them and the others are empty.

    Args:
        tokenizer: of the policy.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer: Any = tokenizer  # `decode` is annotated as giving a list too
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Returns one text per id."""
        texts: list[str] = []
        before: tuple[int, ...] = ()
        for broken, run in groupby(ids, key=lambda token: _BROKEN in self._decoded((token,))):
            members = tuple(run)
            for part in [members] if broken else [(token,) for token in members]:
                texts += [self._decoded(before + part)[len(self._decoded(before)) :], *[""] * (len(part) - 1)]
                before = part[-1:]
        return texts

    def _decoded(self, ids: tuple[int, ...]) -> str:
        if ids not in self._known:
            self._known[ids] = self._tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        return self._known[ids]
