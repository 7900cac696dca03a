"""Questions with known answers from a dataset of others, as rows of a task.

A row's question is a text, a list of messages, or a ShareGPT conversation, whose last reply is then the solution. What
can't be mapped is refused with the row and the column.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

QUESTIONS = ("prompt", "question", "problem", "messages", "conversations")
"""Columns that may hold the question, the first of them that a row has."""
CHOICES = ("choices", "options")
"""Columns without which a question of several choices can't be answered."""
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
TESTS = ("test", "validation", "eval")
LONGEST = 80  # characters of a solution that is an answer as it stands
MOST_HELD = 200
MATH = "math-verify"
EDGE = " $,;:!'\"*"  # around an answer, without meaning; so is a point behind it, but none before it
_LINE = re.compile(r"answer\s*(?:is)?\s*:\s*(.+)", re.IGNORECASE)


def questions(source: str) -> dict[str, list[dict[str, Any]]]:
    """Reads a dataset: a file of JSON, JSON lines, CSV or parquet, a folder of such files, or an id of the Hub, with
    ``:NAME`` for one of its configurations.

    Returns:
        The splits ``train`` and ``test``, of which no question is in both. A row has ``task_id``, ``messages``,
        ``answer`` and ``hint``, a list of texts for the teacher. Without a split for tests a tenth is held out.

    Raises:
        ValueError: if it can't be read, or a row has no question or no answer; names row and column.
    """
    splits = _splits(source)
    train = next((name for name in splits if name == "train"), next(iter(splits)))
    test = next((name for name in TESTS if name in splits and name != train), None)
    try:
        learnt = _rows(splits[train], train)
    except UnicodeDecodeError as error:  # JSON lines are decoded where they are read
        raise ValueError(f"--dataset {source} can't be read: {error}; save it as UTF-8") from error
    if test is None:
        keys = sorted(learnt)
        random.Random(0).shuffle(keys)
        held = min(MOST_HELD, max(1, len(keys) // 10))
        learnt, tested = ({key: learnt[key] for key in part} for part in (keys[held:], keys[:held]))
    else:
        tested = {key: row for key, row in _rows(splits[test], test).items() if key not in learnt}
    if not learnt or not tested:
        raise ValueError(
            f"--dataset {source}: {len(learnt) + len(tested)} different questions are too few to hold some out"
        )
    return {"train": list(learnt.values()), "test": list(tested.values())}


def _splits(source: str) -> Any:
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    path, (name, _, part) = Path(source).expanduser(), source.partition(":")
    try:
        if path.is_file():
            if path.suffix not in FORMATS:
                raise ValueError(f"its name must end in one of {', '.join(FORMATS)}")
            return load_dataset(FORMATS[path.suffix], data_files=str(path))
        return load_dataset(str(path)) if path.is_dir() else load_dataset(name, part or None)
    except Exception as error:  # of many kinds, by what is in a file and where the Hub is
        cause = error.__cause__ or error
        reason = " ".join(f"{error} {cause if cause is not error else ''}".split())[:300] or "it is empty"
        raise ValueError(f"--dataset {source} can't be read: {reason}") from error


def _rows(split: Any, name: str) -> dict[str, dict[str, Any]]:
    """Returns a split's rows by their question; the first of equal ones counts."""
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(split):
        try:
            messages, answer, solution = question_of(row)
        except ValueError as error:
            raise ValueError(f"row {number} of split {name!r}: {error}") from None
        hint = [f"The answer is {answer}.", *([f"A solution: {solution}"] if solution != answer else [])]
        made = {"task_id": f"{name}/{number}", "messages": messages, "answer": answer, "hint": hint}
        found.setdefault(json.dumps(messages), made)
    return found


def question_of(row: Mapping[str, Any]) -> tuple[list[dict[str, str]], str, str]:
    """Returns a row's messages up to the question, its answer and its solution. Raises `ValueError` without them."""
    column = next((one for one in QUESTIONS if row.get(one)), None)
    if column is None:
        raise ValueError(
            f"no column {' or '.join(QUESTIONS)} holds a question; it has {', '.join(row)}: rename the one that does, "
            "or leave the row out"
        )
    messages = _messages(row[column], column)
    reply = messages.pop()["content"] if messages[-1]["role"] == "assistant" else None
    if not messages or messages[-1]["role"] != "user":
        raise ValueError(f"column {column!r}: its last message must be the user's, or a reply to that")
    if unshown := next((one for one in CHOICES if row.get(one)), None):
        raise ValueError(f"column {unshown!r} is not shown: write it into the question, and leave the column out")
    told = [*_told(row)] or [reply or ""]
    if not told[0]:
        raise ValueError(
            "neither a column answer nor solution nor a last reply says what is right; it has "
            f"{', '.join(row)}: rename the one that does, or leave the row out"
        )
    return messages, final(told[0]), told[-1]


def _told(row: Mapping[str, Any]) -> Iterator[str]:
    """Yields a row's answer and solution, of those that it has."""
    for column in ("answer", "solution"):
        value = row.get(column)
        if isinstance(value, list | Mapping):
            raise ValueError(f"column {column!r} is a {type(value).__name__}; a text or a number is read")
        if value not in (None, "") and value == value:  # a missing number is not equal to itself
            yield str(value).strip()


def _messages(value: Any, column: str) -> list[dict[str, str]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"column {column!r} is a {type(value).__name__}; a text or a list of messages is read")
    found = []
    for one in value:
        speaker, text = one.get("role") or one.get("from"), one.get("content") or one.get("value")
        if speaker not in SPEAKERS:
            raise ValueError(f"column {column!r}: {speaker!r} speaks; read are {', '.join(SPEAKERS)}")
        if not isinstance(text, str):
            raise ValueError(f"column {column!r}: a message is a {type(text).__name__}; only text is read")
        found.append({"role": SPEAKERS[speaker], "content": text})
    return found


def final(text: str) -> str:
    r"""Returns the final answer of a solution: what stands in its last ``\boxed{}``, behind its last ``####`` or in its
    last line ``Answer: ...``. A short text is an answer itself. Raises `ValueError` for a long one without."""
    if found := boxed(text):
        return found
    lines = [text] if "####" in text else _LINE.findall(text) or [text]
    answer = lines[-1].rpartition("####")[2].strip()
    if not answer or len(answer) > LONGEST or "\n" in answer:
        raise ValueError(
            rf"the solution of {len(text)} characters names no final answer (\boxed{{}}, #### or Answer:), so that "
            "nothing can be compared; add a column answer"
        )
    return answer


def boxed(text: str) -> str:
    r"""Returns what stands in the last ``\boxed{}`` of a text; empty without one that is closed."""
    _, mark, rest = text.rpartition(r"\boxed{")
    depth = 1
    for place, one in enumerate(rest if mark else ""):
        depth += (one == "{") - (one == "}")
        if depth == 0:
            return rest[:place].strip()
    return ""


def answer_in(response: str) -> str:
    r"""Returns the answer of a response behind its thoughts: its last ``Answer: ...``, else its last ``\boxed{}``, else
    a short response itself. Empty without one."""
    said = response.rpartition("</think>")[2].strip()
    if lines := _LINE.findall(said):
        return boxed(lines[-1]) or lines[-1].strip()
    return boxed(said) or (said if len(said) <= LONGEST and "\n" not in said else "")


def needs_math(answers: list[str]) -> bool:
    """Whether answers are mathematics that two writings may mean the same."""
    return any("\\" in one or "^" in one for one in answers)


def check_reward(reward: str) -> None:
    """Raises `ValueError` for a reward that is neither ``equal`` nor ``math``, and for ``math`` without its package."""
    if reward not in ("equal", "math"):
        raise ValueError(f"REWARD={reward!r} must be 'equal' or 'math'")
    if reward == "math" and find_spec("math_verify") is None:
        raise ValueError(f"REWARD='math' compares answers by the package {MATH}: pip install {MATH}, or use 'equal'")


def right(said: str, answer: str, reward: str = "equal") -> bool:
    """Returns whether a given answer is the right one: equal when both are normalised, or with ``math`` equal in
    mathematics by math-verify."""
    if _normal(said) == _normal(answer):
        return bool(said)
    if reward != "math" or not said:
        return False
    from math_verify import parse, verify  # its own time limits need the main thread

    read = [parse(f"\\boxed{{{one}}}", parsing_timeout=None) for one in (answer, said)]
    return bool(read[0] and read[1] and verify(*read, timeout_seconds=None))


def _normal(text: str) -> str:
    plain = " ".join(text.casefold().split()).rpartition("=")[2].rstrip(f"{EDGE}.").lstrip(EDGE)
    plain = re.sub(r"^\(?([a-z])\)$", r"\1", plain)  # a choice's letter
    number = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain)
    with suppress(ValueError, ZeroDivisionError):
        return str(Fraction(number))
    return plain
