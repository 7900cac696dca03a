"""Questions of the embedded closed world, of local Parquet or JSON-lines files, or of a data set of the hub.

All become rows of the same columns; a row that does not fit is refused by file and number before training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignopsd_trl.environments.base import DataError, View
from alignopsd_trl.environments.panel import SPLITS, TaskPanel
from alignopsd_trl.environments.searchqa.prompt import SearchQAPrompt

if TYPE_CHECKING:
    from datasets import Dataset

DATA_SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
CLOSED_WORLD = Path(__file__).parent / "data"

Row = dict[str, Any]


class Questions:
    """The questions of a source, by split.

    Args:
        source: None for the closed world; a folder with ``train`` and ``test`` as ``.parquet`` or ``.jsonl``; a mapping
            from split to such a file; or the id of a data set on the hub (``owner/name``).
    """

    def __init__(self, source: str | Path | Mapping[str, str | Path] | None = None):
        self.source = CLOSED_WORLD if source is None else source
        self.name = "closed_world" if source is None else str(source)
        self._rows: dict[str, list[Row]] = {}

    def rows(self, split: str) -> list[Row]:
        """Returns rows with ``task_id, category, question, golden_answers, data_source``, in the order of the source.

        Raises:
            DataError: on an unknown split, a missing file or a broken row.
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
        if split not in self._rows:
            where, raw = self._read(split)
            self._rows[split] = [clean(row, f"{where}, row {number}", number) for number, row in enumerate(raw)]
            if not self._rows[split]:
                raise DataError(f"{where} has no questions")
        return self._rows[split]

    def dataset(self, split: str) -> Dataset:
        """Returns the rows as a `datasets.Dataset`, with the other columns of the published one: ``prompt`` (our
        template, as one user message), ``ability``, ``reward_model``, ``extra_info``."""
        from datasets import Dataset

        return Dataset.from_list([self._complete(row, split, index) for index, row in enumerate(self.rows(split))])

    def panel(self, name: str) -> TaskPanel:
        """Returns a panel. ``test`` or ``train``: all questions, by data source in the order of tables; ``test/nq``:
        those of one data source.

        Raises:
            DataError: if there is no such panel.
        """
        split, _, source = name.partition("/")
        rows = self.rows(split)
        chosen = [row for known in DATA_SOURCES for row in rows if row["data_source"] == known]
        if source:
            chosen = [row for row in chosen if row["data_source"] == source]
        if not chosen:
            names = [split, *(f"{split}/{s}" for s in DATA_SOURCES if any(r["data_source"] == s for r in rows))]
            raise DataError(f"panel {name!r} does not exist; {self.name} has {', '.join(names)}")
        return TaskPanel.of("searchqa", name, chosen)

    def _complete(self, row: Row, split: str, index: int) -> Row:
        text = SearchQAPrompt().render(View(row["question"], row["question"], (), (), 0))
        return {
            **row,
            "prompt": [{"role": "user", "content": text}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": row["golden_answers"]}},
            "extra_info": {"split": split, "index": index},
        }

    def _read(self, split: str) -> tuple[str, Iterable[Any]]:
        if isinstance(self.source, Mapping):
            if split not in self.source:
                raise DataError(f"no file is given for split {split!r}; given are {', '.join(self.source)}")
            return _file(Path(self.source[split]))
        if Path(self.source).is_dir():
            files = [Path(self.source) / f"{split}{suffix}" for suffix in (".parquet", ".jsonl")]
            found = [file for file in files if file.is_file()]
            if len(found) != 1:
                raise DataError(f"{self.source} must have either {files[0].name} or {files[1].name}")
            return _file(found[0])
        name = str(self.source)
        if Path(name).suffix or name.count("/") != 1:
            raise DataError(f"data {name!r} is neither a folder, a mapping of files nor a hub id like 'owner/name'")
        return _hub(name, split)


def clean(row: Any, where: str, number: int) -> Row:
    """Converts a raw row to our columns.

    Raises:
        DataError: naming the row and the field.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: must be a mapping, is {type(row).__name__}")
    question, source = row.get("question"), row.get("data_source")
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{where}: field 'question' must be a non-empty string, is {question!r}")
    if source not in DATA_SOURCES:
        raise DataError(f"{where}: unknown data_source {source!r}; known are {', '.join(DATA_SOURCES)}")
    identity = row.get("id")
    return {
        "task_id": f"{source}/{number if identity is None else identity}",
        "category": source,
        "question": question,
        "golden_answers": read_answers(row, where),
        "data_source": source,
    }


def read_answers(row: Mapping[str, Any], where: str) -> list[str]:
    """Returns the accepted answers: ``golden_answers``, or ``reward_model.ground_truth`` as mapping with ``target``,
    list or string.

    Raises:
        DataError: if there are none, or one that is not a string.
    """
    answers = row.get("golden_answers")
    if answers is None and isinstance(row.get("reward_model"), Mapping):
        answers = row["reward_model"].get("ground_truth")
    if isinstance(answers, Mapping):
        answers = answers.get("target")
    answers = answers.tolist() if hasattr(answers, "tolist") else answers
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, Sequence) or not all(isinstance(answer, str) for answer in answers):
        raise DataError(f"{where}: field 'golden_answers' must be a string or a list of strings, is {answers!r}")
    return list(answers)


def _file(path: Path) -> tuple[str, Iterable[Any]]:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    if path.suffix == ".parquet":
        return str(path), _parquet(path)
    if path.suffix == ".jsonl":
        return str(path), _json_lines(path)
    raise DataError(f"{path}: only .parquet and .jsonl files are read")


def _parquet(path: Path) -> list[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, row {number}: not a line of JSON ({error})") from error


def _hub(name: str, split: str) -> tuple[str, Iterable[Any]]:
    from datasets import load_dataset

    try:
        return f"{name} ({split})", load_dataset(name, split=split)
    except (OSError, ValueError) as error:
        raise DataError(f"data set {name!r} of the hub can't be loaded: {error}") from error
