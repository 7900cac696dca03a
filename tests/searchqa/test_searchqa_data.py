"""Questions, panels and averages, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignopsd_trl.environments.searchqa import DATA_SOURCES, DataError, Questions, averages, suite
from alignopsd_trl.environments.searchqa.tasks import read_answers

ROW = {"id": "test_0", "question": "who", "golden_answers": ["a"], "data_source": "nq"}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_closed_world_columns() -> None:
    data = Questions().dataset("test")
    assert len(data) == 200
    assert set(data.column_names) == {
        "task_id", "category", "question", "golden_answers", "data_source", "prompt", "ability", "reward_model",
        "extra_info",
    }  # fmt: skip
    row = data[3]
    assert row["ability"] == "fact-reasoning" and row["extra_info"] == {"split": "test", "index": 3}
    assert row["reward_model"] == {"style": "rule", "ground_truth": {"target": row["golden_answers"]}}
    assert [message["role"] for message in row["prompt"]] == ["user"]
    assert f"Your question: {row['question']}\n" in row["prompt"][0]["content"]


def test_parquet_and_json_lines_give_the_same(tmp_path: Path) -> None:
    rows = [{**ROW, "id": str(i), "data_source": source, "golden_answers": ["ä", str(i)]}
            for i, source in enumerate(["popqa", "nq", "popqa"])]  # fmt: skip
    published = [{**row, "golden_answers": None,
                  "reward_model": {"style": "rule", "ground_truth": {"target": row["golden_answers"]}}}
                 for row in rows]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(published), tmp_path / "test.parquet")
    files = lines(tmp_path / "questions.jsonl", *rows)
    assert Questions(tmp_path).rows("test") == Questions({"test": files}).rows("test")
    panel = Questions(tmp_path).panel("test")
    assert panel.task_ids == ("nq/1", "popqa/0", "popqa/2")
    assert panel.checksum == Questions({"test": files}).panel("test").checksum
    assert Questions(tmp_path).panel("test/popqa").task_ids == ("popqa/0", "popqa/2")


AB = ["a", "b"]


@pytest.mark.parametrize(
    ("truth", "answers"),
    [({"target": AB}, AB), ({"target": np.array(AB, object)}, AB), (AB, AB), (("a", "b"), AB), ("ab", ["ab"])],
)
def test_ground_truth_shapes(truth: Any, answers: list[str]) -> None:
    assert read_answers({"reward_model": {"ground_truth": truth}}, "row") == answers
    assert read_answers({"golden_answers": truth}, "row") == answers


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "golden_answers": [1868]}, "row 1: field 'golden_answers'"),
        ({**ROW, "golden_answers": None}, "row 1: field 'golden_answers'"),
        ({**ROW, "golden_answers": {"target": {}}}, "row 1: field 'golden_answers'"),
        ({**ROW, "data_source": "squad"}, "row 1: unknown data_source 'squad'; known are nq"),
        ({**ROW, "question": "  "}, "row 1: field 'question'"),
        ([], "row 1: must be a mapping"),
    ],
)
def test_broken_rows(row: Any, message: str, tmp_path: Path) -> None:
    file = lines(tmp_path / "test.jsonl", ROW, row)
    with pytest.raises(DataError, match=message) as caught:
        Questions({"test": file}).dataset("test")
    assert "test.jsonl" in str(caught.value)


def test_broken_files(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"question"')
    (tmp_path / "train.parquet").write_bytes(b"PAR")
    for split in ("test", "train"):
        with pytest.raises(DataError, match=split):
            Questions(tmp_path).rows(split)
    for source in ({"test": tmp_path / "no.jsonl"}, {"train": "x"}, "no/such/folder", tmp_path / "test.jsonl"):
        with pytest.raises(DataError):
            Questions(source).rows("test")
    with pytest.raises(DataError, match="has no questions"):
        Questions({"test": lines(tmp_path / "empty.jsonl")}).rows("test")
    with pytest.raises(DataError, match="split 'dev' is unknown"):
        Questions().rows("dev")
    with pytest.raises(DataError, match="does not exist; closed_world has test, test/nq"):
        Questions().panel("test/squad")


def test_a_repeated_question_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'nq/test_0' occurs twice"):
        Questions({"test": lines(tmp_path / "q.jsonl", ROW, ROW)}).panel("test")


def test_own_questions_need_a_corpus() -> None:
    with pytest.raises(ValueError, match="corpus"):
        suite(data="owner/name")
    with pytest.raises(ValueError, match="urls"):
        suite(backend="http")
    with pytest.raises(ValueError, match="unknown"):
        suite(backend="lucene")


def test_panels_cover_the_test_split_in_table_order() -> None:
    questions = Questions()
    panel = questions.panel("test")
    sizes = [len(questions.panel(f"test/{source}")) for source in DATA_SOURCES]
    assert sizes == [30, 30, 40, 30, 35, 20, 15] and sum(sizes) == len(panel)
    assert [row["data_source"] for row in panel] == [
        s for s, n in zip(DATA_SOURCES, sizes, strict=True) for _ in range(n)
    ]
    assert set(panel.rows[0]) == {"task_id", "category", "question", "golden_answers", "data_source"}


def test_the_two_means_differ_and_are_named() -> None:
    found = averages([("popqa", 1.0), ("popqa", 1.0), ("popqa", 0.0), ("nq", 0.0)])
    assert found.macro_mean == pytest.approx(1 / 3)
    assert found.question_weighted_mean == pytest.approx(1 / 2)
    assert found.questions == {"nq": 1, "popqa": 3} and list(found.per_source) == ["nq", "popqa"]
    text = str(found)
    assert "mean over data sets" in text and "mean over questions" in text and "33.3%" in text and "50.0%" in text
    for strange, problem in (([], "no results"), ([("squad", 1.0)], "squad")):
        with pytest.raises(ValueError, match=problem):
            averages(strange)


def test_a_hub_id_is_loaded_by_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, split: str) -> datasets.Dataset:
        asked.append((name, split))
        truth = {"style": "rule", "ground_truth": {"target": ["a", "b"]}}
        return datasets.Dataset.from_list(
            [{"id": "test_0", "question": "q", "data_source": "nq", "reward_model": truth}]
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert Questions("owner/name").rows("test")[0]["golden_answers"] == ["a", "b"]
    assert asked == [("owner/name", "test")]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: (_ for _ in ()).throw(OSError("offline")))
    with pytest.raises(DataError, match="'owner/name' of the hub can't be loaded: offline"):
        Questions("owner/name").rows("test")
