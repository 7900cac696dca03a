"""Demonstrations: by a scripted player or an endpoint, with skills or texts of turns, a turn or an episode a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes.endpoint import answering
from fakes.own_task import changed, fails, rows_of

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.own_task.demonstrations import encoded
from alignopsd_trl.commands.own_task.task import find_task
from alignopsd_trl.commands.own_task.warm_start.tiny import tiny_tokenizer


def test_demonstrations_are_prompts_that_a_policy_reads_with_and_without_skills(maze: Path) -> None:
    main(["demonstrate", "maze", "--episodes", "6", "--output", "some.jsonl"])
    rows = rows_of(maze / "some.jsonl")
    plain, skilled = ([row for row in rows if row["skilled"] is kind] for kind in (False, True))
    assert plain and skilled
    for row in rows:
        (system, shown), (answer,) = row["prompt"], row["completion"]
        assert (system["role"], shown["role"], answer["role"]) == ("system", "user", "assistant")
        assert ("Guidance for this kind of task" in shown["content"]) is row["skilled"]
        assert answer["content"].startswith("<think>") and answer["content"].endswith("</action>")
    first = next(row for row in plain if row["turn"] == 0)
    assert first["prompt"][-1]["content"].startswith("Leave the maze of the ")


@pytest.mark.parametrize(
    ("share", "skilled"), [(0.25, [0, 0, 0, 1] * 3), (0.0, [0] * 12), (1.0, [1] * 12), (0.5, [0, 1] * 6)]
)
def test_a_share_of_the_episodes_is_played_under_the_skill(maze: Path, share: float, skilled: list[int]) -> None:
    main(["demonstrate", "maze", "--episodes", "12", "--skilled_share", str(share)])
    opened = [row for row in rows_of(maze / "demonstrations.jsonl") if row["turn"] == 0]
    assert [row["skilled"] for row in opened] == skilled


def test_tasks_that_the_recipe_holds_out_are_not_demonstrated(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(maze / "train.py", ('"rounds":', '"held_out": 1020,\n    "rounds":'))
    main(["demonstrate", "maze", "--episodes", "12"])
    shown = {row["task_id"] for row in rows_of(maze / "demonstrations.jsonl")}
    assert shown == {f"maze/train/{number}" for number in range(4)}
    changed(maze / "train.py", ('"held_out": 1020', '"held_out": 1024'))
    fails(["demonstrate", "maze"], "held_out=1024 leaves none of 1024 training tasks", capsys=capsys)


@pytest.mark.full
def test_a_policy_shows_itself_without_the_skill_what_it_wins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    play = ["demonstrate", "searchqa_hops", "--policy", "tiny_hops", "--episodes", "12"]
    main([*play, "--output", "with.jsonl"])
    told = capsys.readouterr().out
    rows = rows_of(tmp_path / "with.jsonl")
    won = int(re.search(r"(\d+) of 12 won with it", told)[1])
    assert "next: alignopsd warm_start searchqa_hops --model tiny_hops" in told
    assert len({row["task_id"] for row in rows}) == won > 0 and all(row["won"] for row in rows)
    assert not any("Guidance" in one["content"] for row in rows for one in row["prompt"])
    main([*play, "--output", "alone.jsonl", "--skilled_share", "0"])  # the skill decides what it does
    alone = rows_of(tmp_path / "alone.jsonl")
    both = {row["task_id"] for row in rows} & {row["task_id"] for row in alone}
    assert {str(one) for one in rows if one["task_id"] in both} != {str(one) for one in alone if one["task_id"] in both}
    main(
        [
            "warm_start",
            "searchqa_hops",
            "--data",
            "with.jsonl",
            "--model",
            "tiny_hops",
            "--max_steps",
            "1",
            "--tasks",
            "2",
        ]
    )
    assert "nothing is played" not in capsys.readouterr().out
    fails([*play, "--max_prompt_length", "3"], "longer than max_prompt_length=3", capsys=capsys)
    fails([*play, "--endpoint", "http://localhost:1/v1"], "not allowed with argument", status=2, capsys=capsys)


def test_a_shipped_recipe_is_a_task_with_its_own_sizes() -> None:
    for name, length, environment in (("sums_smollm", 200, "sums"), ("searchqa_hops", 256, "searchqa_hops")):
        task = find_task(name)
        assert task.limit("max_prompt_length") == length and task.suite.name == environment and task.rows


ANSWERS = {
    "a page": (b"<html>It works!</html>", "no chat completion"),
    "a list": (b"[]", "no chat completion"),
    "no choice": (b'{"choices": []}', "no chat completion"),
    "a number": ({"content": 5}, "no chat completion"),
    "no action": ("I would rather not.", "valid action"),
    "an error": ((500, b"out of memory"), "answered 500: out of memory"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_endpoint_that_answers_nonsense_ends_in_a_sentence(
    maze: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, word = ANSWERS[name]
    with answering(lambda question: answer) as (address, _):
        fails(["demonstrate", "maze", "--endpoint", address, "--episodes", "2"], word, capsys=capsys)
    assert not (maze / "demonstrations.jsonl").exists()


def test_an_endpoint_that_plays_leaves_demonstrations(maze: Path) -> None:
    message = {"content": "<action>go north</action>", "reasoning_content": "North is new."}
    with answering(lambda question: message) as (address, asked):
        flags = ["--endpoint", address, "--endpoint_model", "teacher", "--temperature", "0.5"]
        main(["demonstrate", "maze", *flags, "--episodes", "3", "--output", "asked.jsonl"])
    rows = rows_of(maze / "asked.jsonl")
    assert {row["task_id"] for row in rows} and len(rows) == len(asked)
    assert rows[0]["completion"][0]["content"] == "<think>\nNorth is new.\n</think>\n<action>go north</action>"
    assert (asked[0]["model"], asked[0]["temperature"]) == ("teacher", 0.5)
    prompts = [row["prompt"] for row in rows]
    assert all(one["messages"] in prompts for one in asked)  # episodes ask side by side, in any order


@pytest.mark.full
def test_a_warm_start_learns_dialogues_as_the_policy_reads_them(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = (maze / "train.py").read_text()
    options = '**LAPTOP, "history": "conversation", "past_thinking": "keep",'
    (maze / "train.py").write_text(recipe.replace("**LAPTOP,", options))
    main(["demonstrate", "maze", "--episodes", "8"])
    rows, preset = rows_of(maze / "demonstrations.jsonl"), find_task("maze").preset
    assert f"{sum(len(row['completion']) + 1 for row in rows) // 2} turns of 8 episodes" in capsys.readouterr().out
    assert len(rows) == 8 and {row["skilled"] for row in rows} == {True, False}
    row = max(rows, key=lambda one: len(one["completion"]))
    said = [one["content"] for one in row["completion"] if one["role"] == "assistant"]
    assert [one["role"] for one in row["completion"]] == ["assistant", *["user", "assistant"] * (len(said) - 1)]
    tokenizer = tiny_tokenizer([one["content"] for row in rows for one in (*row["prompt"], *row["completion"])])
    parts = list(encoded(row, tokenizer, preset))
    assert len(parts) == 1
    learnt = [
        token for one in parts for token, mark in zip(one["input_ids"], one["completion_mask"], strict=True) if mark
    ]
    assert tokenizer.decode(learnt) == "".join(one + tokenizer.eos_token for one in said)
    whole = tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
    assert whole.startswith(tokenizer.decode(parts[0]["input_ids"]))
    main(["warm_start", "maze", "--max_steps", "2", "--tasks", "2"])
    assert "2 updates: held-out loss" in capsys.readouterr().out
