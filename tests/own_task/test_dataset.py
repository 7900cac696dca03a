"""A task of a dataset's questions: what is mapped, what is refused, what counts as right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from fakes.own_task import fails

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.own_task import dataset, scaffold
from alignopsd_trl.environments import load
from alignopsd_trl.environments.adapters import questions as asked
from alignopsd_trl.environments.adapters.questions import answer_in, check_reward, final, question_of, questions, right

ROWS = [{"prompt": f"What is {n} + {n}?", "answer": f"{2 * n}"} for n in range(20)]


def _written(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    else:
        frame = pd.DataFrame(rows)
        frame.to_csv(file, index=False) if file.suffix == ".csv" else frame.to_parquet(file)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_file_of_each_form_is_read_and_a_tenth_held_out(kind: str, tmp_path: Path) -> None:
    found = questions(str(_written(tmp_path / f"rows.{kind}", [*ROWS, ROWS[0]])))
    assert (len(found["train"]), len(found["test"])) == (18, 2)
    asked_in = [{one["messages"][0]["content"] for one in rows} for rows in found.values()]
    assert not asked_in[0] & asked_in[1]  # nor is the row that occurs twice
    row = next(one for rows in found.values() for one in rows if one["messages"][0]["content"] == "What is 7 + 7?")
    assert (row["answer"], row["hint"]) == ("14", ["The answer is 14."])


def test_a_folder_with_a_split_for_tests_keeps_it(tmp_path: Path) -> None:
    for name, part in (("train", ROWS[:12]), ("test", ROWS[10:])):
        _written(tmp_path / f"{name}.jsonl", part)
    found = questions(str(tmp_path))
    assert (len(found["train"]), len(found["test"])) == (12, 8)  # two of the tests are trained on


SHARED = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Hello"},
    {"from": "gpt", "value": "Hello."},
    {"from": "human", "value": "The capital of France?"},
    {"from": "gpt", "value": "Paris"},
]


@pytest.mark.parametrize(
    ("row", "question", "answer", "solution"),
    [
        ({"conversations": SHARED}, "The capital of France?", "Paris", "Paris"),
        (
            {"prompt": [{"role": "user", "content": "1 + 1?"}], "solution": r"So \boxed{2}."},
            "1 + 1?",
            "2",
            r"So \boxed{2}.",
        ),
        ({"question": "1 + 1?", "answer": "One more.\n#### 2"}, "1 + 1?", "2", "One more.\n#### 2"),
        ({"problem": "1 + 1?", "answer": "2", "solution": "Count."}, "1 + 1?", "2", "Count."),
        ({"messages": [{"role": "user", "content": "a"}], "answer": 3}, "a", "3", "3"),
        ({"prompt": "a", "answer": float("nan"), "solution": "#### So\n#### 3"}, "a", "3", "#### So\n#### 3"),
    ],
)
def test_the_forms_of_others_are_mapped(row: dict[str, Any], question: str, answer: str, solution: str) -> None:
    messages, *told = question_of(row)
    assert (messages[-1], told) == ({"role": "user", "content": question}, [answer, solution])
    assert [one["role"] for one in question_of({"conversations": SHARED})[0]] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"instruction": "a", "answer": "b"}, "no column prompt or question"),
        ({"prompt": "a", "response": "b"}, "neither a column answer nor solution .* has prompt, response: rename"),
        ({"prompt": "a", "answer": float("nan")}, "neither a column answer nor solution"),
        ({"prompt": "a", "answer": ["b", "c"]}, "column 'answer' is a list"),
        ({"question": "a", "choices": ["b", "c"], "answer": 1}, "column 'choices' is not shown"),
        ({"prompt": 3, "answer": "b"}, "column 'prompt' is a int"),
        ({"prompt": [{"role": "tool", "content": "a"}], "answer": "b"}, "'tool' speaks"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "b"}, "a message is a list"),
        ({"prompt": [{"role": "system", "content": "a"}], "answer": "b"}, "must be the user's"),
        ({"prompt": "a", "solution": "a word " * 40}, "names no final answer"),
        ({"prompt": "a", "solution": "#### a title\nand a text"}, "names no final answer"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        question_of(row)


@pytest.mark.parametrize(
    ("said", "answer", "equal"),
    [
        ("14.", "14", True),
        ("14.0", "14", True),
        ("1,024", "1024", True),
        ("(B)", "B", True),
        ("b).", "B", True),
        ("f(x)", "x", False),
        (" PARIS!", "Paris", True),
        ("$5$", "5", True),
        ("1/2", "0.5", True),
        ("0.5", ".5", True),
        ("5", ".5", False),
        ("7 + 7 = 14", "14", True),
        ("15", "14", False),
        ("", "", False),
    ],
)
def test_answers_are_equal_as_they_are_meant(said: str, answer: str, equal: bool) -> None:
    assert right(said, answer) is equal


def test_answers_are_found_where_a_response_puts_them() -> None:
    assert answer_in("<think>Answer: 3</think>Twelve. Answer: 12\n") == "12"
    assert answer_in(r"Answer: \boxed{\frac{1}{2}}") == final(r"so \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert answer_in("12") == "12"
    assert answer_in("I think\nof nothing") == answer_in("<think>12</think>") == ""


def test_mathematics_needs_its_package_and_asks_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    formulas = [{"prompt": f"{n}/4?", "answer": rf"\frac{{{n}}}{{4}}"} for n in range(1, 12)]
    file = str(_written(tmp_path / "rows.jsonl", formulas))
    for one in (dataset, asked):
        monkeypatch.setattr(one, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install math-verify"):
        dataset.asked_dataset(file)
    with pytest.raises(ValueError, match="pip install math-verify"):
        check_reward("math")
    monkeypatch.setattr(dataset, "find_spec", lambda name: "found")
    assert dataset.asked_dataset(file).values["REWARD"] == "math"
    parse = lambda text, parsing_timeout: [text[len("\\boxed{") : -1]]  # noqa: E731
    verify = lambda gold, said, timeout_seconds: {gold[0], said[0]} == {r"\frac{2}{4}", r"\frac{1}{2}"}  # noqa: E731
    monkeypatch.setitem(sys.modules, "math_verify", SimpleNamespace(parse=parse, verify=verify))
    assert right(r"\frac{1}{2}", r"\frac{2}{4}", "math") and not right(r"\frac{1}{2}", r"\frac{2}{4}")
    assert not right(r"\frac{1}{3}", r"\frac{2}{4}", "math")


def test_a_task_of_questions_is_written_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], forgotten: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scaffold, "recipe_changes", lambda *given: ({}, "a model"))
    file = _written(tmp_path / "rows.jsonl", ROWS)
    main(["new", "maze_of_sums", "--dataset", str(file), "--model", "a_model"])
    assert "is written, for a model." in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "maze_of_sums")
    suite = load("maze_of_sums")
    game = suite.factory()
    row = suite.tasks("train")[0]
    opening = game.reset(**row, seed=0)
    shown = game.prompt.render(SimpleNamespace(context=opening.context, history=[]), "The answer is 1.")
    assert shown[-1]["content"].startswith("What is") and "Answer: the answer alone" in shown[-1]["content"]
    assert not game.step("no").done and game.step(f"{row['answer']}.0").won
    assert suite.skill_bank == "hint"
    assert not {one["task_id"] for one in suite.tasks("train")} & set(suite.panel("test").task_ids)


@pytest.mark.parametrize(("written", "words"), [(b"", "it is empty"), (b'{"prompt": "\xe9", "answer": 1}', "UTF-8")])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(written: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(written)
    with pytest.raises(ValueError, match=f"rows.jsonl can't be read: .*{words}"):
        questions(str(file))


def test_a_dataset_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = _written(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "b"}])
    fails(
        ["new", "q", "--dataset", str(told), "--model", "x/y"], "row 0 of split 'train'", "it has text", capsys=capsys
    )
    fails(["new", "q", "--dataset", str(told), "--model", "tiny"], "knows something", capsys=capsys)
    fails(["new", "q", "--dataset", "nobody/nothing", "--model", "x/y"], "can't be read", capsys=capsys)
    assert not (tmp_path / "q").exists()
