"""The source ``diagnosis``: a writer names one turn of a lost episode and says one sentence about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.endpoint import answering
from fakes.episodes import episode
from fakes.toy import ToyEnvironment, answer_with, build_tokenizer, toy_response
from fakes.trainers import make_trainer

from alignopsd_trl.privileged import PrivilegedError, load_source
from alignopsd_trl.records import read_records
from alignopsd_trl.runs.health import RunStopped

MARK = "nine eight seven nine"


def said(turn: Any, text: Any = MARK) -> str:
    return json.dumps({"turn": turn, "text": text})


def texts(source: Any, *group: Any) -> list[list[str]]:
    source.begin(group)
    return [[source(turn, one, [two for two in group if two is not one]) for turn in one.turns] for one in group]


def test_a_lost_episode_is_asked_about_once_and_the_named_turn_gets_the_text() -> None:
    won, lost = (episode("0", reward, ("left", "hall"), ("up", "<b>goal</b>")) for reward in (1.0, 0.0))
    won.won, lost.won, lost.seeds = True, False, lost.seeds._replace(dynamics_seed=2**31 + 7)
    with answering(lambda question: f"<think>{{}}</think>Well: {said(1)}.") as (url, asked):
        found = texts(load_source(f"diagnosis@{url}#author"), won, lost)
    assert found == [["", ""], ["", MARK]]
    (request,) = asked
    question = request["messages"][0]["content"]
    assert (request["model"], request["seed"], request["temperature"]) == ("author", 7, 0.0)
    assert "find it" in question and "Turn 1: it saw: hall\nand did: up\nAt the end it saw: b goal /b\n" in question


def test_where_nobody_knows_who_won_the_worse_siblings_are_asked_about() -> None:
    group = [episode(str(number), reward, ("left", "hall")) for number, reward in enumerate((0.2, 0.9, 0.9))]
    for one in group:
        one.won = None
    with answering(lambda question: said(0)) as (url, asked):
        assert texts(load_source(f"diagnosis@{url}"), *group) == [[MARK], [""], [""]]
    assert len(asked) == 1 and asked[0]["model"] == "default"


@pytest.mark.parametrize("answer", [
    *("", "I would rather not.", "{]}", "[1, 2]", said(7), said(-1), said("0"), said(True), said(None), said([0])),
    *(said(0, ""), said(0, 5), said(0, "<>"), said(0, "\ud800"), json.dumps({"text": MARK}), '{"a":' * 9000 + "}"),
    *(b"out of memory", b'{"choices": []}', 500, 404, {"no": "text"}, ...),
])  # fmt: skip
def test_an_answer_that_is_not_as_asked_costs_itself(answer: Any) -> None:
    group = [episode(str(number), 0.0, (f"left{number}", "hall")) for number in range(3)]
    with answering(lambda question: answer if "left1" in question else said(0)) as (url, asked):
        source = load_source(f"diagnosis@{url}")
        assert texts(source, *group) == [[MARK], [""], [MARK]]
    assert len(asked) == 3 and source.counts == {"asked": 3, "malformed": 1}


def test_question_and_answer_are_bounded() -> None:
    one = episode("0", 0.0, *[(f"go{number} " + "x" * 9999, "word " * 9999) for number in range(200)])
    with answering(lambda question: said(199, "word " * 999)) as (url, asked):
        found = texts(load_source(f"diagnosis@{url}"), one)[0]
    assert not any(found[:-1]) and found[-1].split() == ["word"] * 40
    question = asked[0]["messages"][0]["content"]
    assert len(question) < 30_000 and "go199" in question and "go169" not in question


def test_an_endpoint_that_is_not_there_or_none_is_named() -> None:
    one = episode("0", 0.0, ("left", "hall"))
    for spec, message in (("diagnosis", "use diagnosis@URL"), ("diagnosis@http://127.0.0.1:9/v1", "can't be reached")):
        with pytest.raises(PrivilegedError, match=message):
            load_source(spec).begin([one])
    with pytest.raises(PrivilegedError, match="names no address"):
        load_source("diagnosis@localhost:8000")


def test_a_run_teaches_the_named_turns_and_counts_the_rest(tmp_path: Path) -> None:
    def answer(question: str) -> str:
        last = int(re.findall(r"Turn (\d+):", question)[-1])
        return said(last, f"{MARK} <|im_end|>") if last % 2 else "no idea"

    with answering(answer) as (url, asked):
        options = {"method": "align_opsd", "max_steps": 2, "save_trajectories": True}
        trainer = make_trainer(tmp_path, privileged=f"diagnosis@{url}", **options)
        trainer.train()
    records = read_records(tmp_path / "trajectories")
    keys = [records.step, records.task, records.rollout]
    last, won = records.groupby(keys).turn.transform("max"), records.groupby(keys).won.transform("max").astype(bool)
    named = ~won & (records.turn == last) & (last % 2 == 1)
    assert named.any() and (records.credit_privileged_text != "").tolist() == named.tolist()
    assert set(records[named].credit_privileged_text) == {f"{MARK} |im_end|"}
    lost = records[~won].drop_duplicates(["step", "task", "rollout"])
    logged = [entry for entry in trainer.state.log_history if "teacher/asked" in entry]
    assert sum(entry["teacher/asked"] for entry in logged) == len(lost) == len(asked)
    assert sum(entry["teacher/malformed"] for entry in logged) == (last[lost.index] % 2 == 0).sum() > 0


def test_without_an_address_the_policy_writes(tmp_path: Path) -> None:
    """It is asked in its own chat template; a question that is too long loses its middle."""
    tokenizer, questions = build_tokenizer(), []

    def respond(prompts: list[list[int]]) -> tuple[list[list[int]], None]:
        kinds = ["agent" in tokenizer.decode(ids) or len(ids) == 128 for ids in prompts]
        questions.extend(ids for ids, asks in zip(prompts, kinds, strict=True) if asks)
        return [toy_response(tokenizer, ids) for ids in prompts], None

    options = {"method": "align_opsd", "save_trajectories": True, "max_prompt_length": 128}
    trainer = make_trainer(tmp_path, privileged="diagnosis", script=False, **options)
    answer_with(trainer, respond)
    trainer.train()
    records = read_records(tmp_path / "trajectories")
    lost = records.groupby(["task", "rollout"]).won.max() == 0
    assert len(questions) == lost.sum() > 0
    start = tokenizer("<|im_start|>user\n")["input_ids"]
    end = tokenizer("<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    assert all(ids[:3] == start and ids[-len(end) :] == end and len(ids) <= 128 for ids in questions)
    (logged,) = [entry for entry in trainer.state.log_history if "teacher/asked" in entry]
    assert logged["teacher/malformed"] == logged["teacher/asked"] == lost.sum(), "the toy's answers are actions"


def test_an_endpoint_that_is_not_there_stops_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ToyEnvironment, method="rlsd", privileged="diagnosis@http://127.0.0.1:9/v1")
    with pytest.raises(RunStopped, match="can't be reached"):
        trainer.train()
