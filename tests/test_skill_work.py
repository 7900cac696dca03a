"""``alignopsd skills``: planted skills are found with a policy that obeys what it reads; banks written from records."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes import corridor
from fakes.endpoint import answering
from fakes.toy import build_tokenizer

from alignopsd_trl import cli
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.records import write_records
from alignopsd_trl.rollout import Responses
from alignopsd_trl.skill_work import write
from alignopsd_trl.skill_work.contrasts import contrasts, forms
from alignopsd_trl.skill_work.worth import HARMS, HELPS, UNTOLD, WHOLE, Bench, measure, unnamed, worths
from alignopsd_trl.skill_work.write import Proposal, bank_of, bounded, distinct, names_of, propose
from alignopsd_trl.skills import SkillBank

GOOD, USELESS, HARMFUL = "hint right", "pick the largest number", "hint left"


class Obeys:
    """A policy that goes right more often where its prompt says "hint right", and less often at "hint left"."""

    def __init__(self) -> None:
        self._draw, self._tokenizer = random.Random(0), build_tokenizer()

    def respond(self, prompts: list[list[int]], until: Any = None) -> Responses:
        texts = [self._tokenizer.decode(prompt) for prompt in prompts]
        chances = [0.95 if GOOD in text else 0.05 if HARMFUL in text else 0.6 for text in texts]
        actions = ["right" if self._draw.random() < chance else "left" for chance in chances]
        answers = [f"<think>go {one}</think><action>{one}</action>" for one in actions]
        return Responses([[*self._tokenizer(one)["input_ids"], self._tokenizer.eos_token_id] for one in answers], None)


def skill(number: int, text: str, letter: str = "t") -> dict[str, str]:
    return {"id": f"maze-{letter}{number:02d}", "title": "go", "text": text, "when": "always"}


def maze_bank(*types: list[dict[str, str]], general: str = GOOD) -> dict[str, Any]:
    """A bank with a type for each number that a corridor asks for, from two on."""
    kinds = [
        {"key": name, "group": "task", "label": name, "description": name, "skills": skills}
        | {"match": {"keywords": [name]}}
        for name, skills in zip(("two", "three"), types, strict=False)
    ]
    content = {"schema": "skillbank/1", "environment": "corridor", "version": "1", "language": "en"}
    return content | {"general": [skill(1, general, "g")], "task_types": kinds, "mistakes": []}


def planted() -> dict[str, Any]:
    """Ten good skills, three useless ones (t05, t06, t12) and two harmful ones (t07, t14)."""
    two = [GOOD, GOOD, GOOD, GOOD, USELESS, USELESS, HARMFUL]
    three = [GOOD, GOOD, GOOD, GOOD, USELESS, GOOD, HARMFUL]
    return maze_bank(*([skill(n, text) for n, text in enumerate(one, at)] for one, at in ((two, 1), (three, 8))))


def bench(tasks: int = 64, policy: Any = None, needs: tuple[int, ...] = (2, 3)) -> Bench:
    rows = {f"corridor/{n}": {"task_id": f"corridor/{n}", "need": needs[n % len(needs)]} for n in range(tasks)}
    return Bench(corridor.player(policy or Obeys()), rows, 64).open()


def count(text: str) -> int:
    return len(text.split())


def test_planted_skills_are_found_by_playing_each_alone() -> None:
    held, bank = bench(128), SkillBank(planted(), "planted")
    found = {one.id: one for one in measure(held, worths(bank, held.asked, count, 8), 1200, lambda line: None)}
    verdicts = {name: one.verdict for name, one in found.items() if name != WHOLE}
    assert [name for name, one in verdicts.items() if one == HARMS] == list(verdicts)[:2], "harmful ones come first"
    assert {name for name, one in verdicts.items() if one == HARMS} == {"maze-t07", "maze-t14"}
    assert {name for name, one in verdicts.items() if one == UNTOLD} == {"maze-t05", "maze-t06", "maze-t12"}
    assert sum(one == HELPS for one in verdicts.values()) == 10
    one = found["maze-t01"]
    assert one.tokens == 4 and len(one.retrieved) == 64 and one.shown == 64 and found["maze-t07"].shown == 0
    assert set(found["maze-g01"].success) == {"all"}, "the corridor has no categories"
    assert sum(one.played for one in found.values()) <= 1200 and len(found["maze-t05"].outcomes) > len(one.outcomes)
    assert all(len(held.plain[task]) == 2 for task in one.outcomes)


def test_few_episodes_decide_nothing() -> None:
    held, bank = bench(6), SkillBank(planted(), "planted")
    assert {one.verdict for one in measure(held, worths(bank, held.asked, count, 64), 40, lambda line: None)} == {
        UNTOLD
    }


def test_tasks_and_skills_that_do_not_meet_are_named() -> None:
    held = bench(4, needs=(2, 1))
    bank = SkillBank(maze_bank([skill(1, GOOD)], [skill(2, GOOD)]), "bank")
    assert unnamed(bank, held.asked) == ["corridor/1", "corridor/3"]
    assert [one.id for one in worths(bank, held.asked, count, 64) if not one.retrieved] == ["maze-t02"]


def test_episodes_whose_environment_fails_are_left_out_or_end_the_check() -> None:
    rows = {"corridor/0": {"task_id": "corridor/0", "need": 1}}
    with pytest.raises(ValueError, match="no episode could be played.*the door is stuck"):
        Bench(corridor.player(Obeys(), corridor.BrokenCorridor), rows, 8).open()
    with pytest.raises(ValueError, match="--value reward"):
        Bench(corridor.player(Obeys(), corridor.SilentCorridor), rows, 8).open()
    assert Bench(corridor.player(Obeys(), corridor.SilentCorridor), rows, 8, "reward").open().plain


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corridor.save_policy(tmp_path_factory.mktemp("corridor_policy"))


def measured(policy: Path, *more: str) -> list[str]:
    here = [
        "--model",
        str(policy),
        "--environment",
        "fakes.corridor",
        "--tasks",
        "12",
        "--encoder",
        "lexical",
    ]
    return [*here, "--episodes", "24", *more]


def test_the_command_leaves_a_page_json_table_and_picture(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bank, out = tmp_path / "bank.json", tmp_path / "out"
    bank.write_text(json.dumps(maze_bank([skill(1, GOOD)], [skill(2, USELESS)])))
    cli.main(["skills", "check", str(bank), *measured(policy), "--output", str(out)])
    told, found = capsys.readouterr().out, json.loads((out / "skills.json").read_text())
    assert "| maze-t01 | go: hint right |" in told and "No task retrieves maze-t02" in told
    assert found["never_retrieved"] == ["maze-t02"] and found["plain_episodes"] == 24
    assert {one["skill"] for one in found["skills"]} == {WHOLE, "maze-g01", "maze-t01", "maze-t02"}
    assert (out / "skills.png").read_bytes()[:4] == b"\x89PNG" and "verdict" in (out / "skills_worth.csv").read_text()


def ends(argv: list[str], capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["skills", *argv])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_what_can_not_be_checked_is_refused(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(maze_bank([])))
    assert "no_bank' is unknown" in ends(["check", "no_bank", *measured(policy)], capsys)
    assert "field 'skills' is []" in ends(["check", str(empty), *measured(policy)], capsys)
    assert "must be 3 or more" in ends(["check", str(empty), *measured(policy, "--tasks", "1")], capsys)
    assert "no folder" in ends(["check", "webshop", "--model", "/no/such", "--environment", "x"], capsys)


# Written from records


def run_of(folder: Path, episodes: list[tuple[str, bool, list[tuple[str, str]]]], category: str = "two") -> Path:
    """A run's records: episodes of (task, won, turns of action and observation), siblings in order."""
    rows, seen = [], {}
    for task, won, turns in episodes:
        number = seen[task] = seen.get(task, -1) + 1
        for turn, (action, observation) in enumerate(turns):
            own = {
                "step": 3,
                "task": task,
                "task_id": task,
                "stop": "done",
                "rollout": f"{number:04d}",
                "turn": turn,
                "won": won,
            }
            own |= {"category": category, "task_text": f"the number two {task}", "reward": float(won), "score": 0.0}
            rows.append(own | {"action": action, "action_valid": True, "observation": observation})
    write_records(folder / "trajectories" / "3.parquet", rows)
    return folder


WON, LOST = [("go", "at one"), ("right", "at two")], [("go", "at one"), ("left", "at zero")]
SIBLINGS = [("a", True, WON), ("a", False, LOST), ("b", True, WON), ("b", False, LOST), ("b", False, LOST)]


def test_winners_and_losers_are_compared_where_they_saw_the_same(tmp_path: Path) -> None:
    (one,) = contrasts(run_of(tmp_path / "run", SIBLINGS), 3)
    assert (one.category, one.won, one.lost, one.state, one.tasks) == ("two", "right", "left", "at one", 2)
    assert one.turns == ("3/a/0000/1", "3/a/0001/1", "3/b/0000/1", "3/b/0001/1")
    both = [*SIBLINGS, ("c", False, WON), ("c", True, LOST), ("d", False, WON), ("d", True, LOST)]
    with pytest.raises(ValueError, match="no two tasks"):
        contrasts(run_of(tmp_path / "both", both), 3)
    elsewhere = [("a", True, WON), ("a", False, [("go", "at nine"), ("left", "at zero")])]
    with pytest.raises(ValueError, match="no two tasks"):
        contrasts(run_of(tmp_path / "elsewhere", elsewhere), 3)
    stopped = pd.read_parquet(run_of(tmp_path / "failed", SIBLINGS) / "trajectories" / "3.parquet")
    lost = (stopped.task == "b") & ~stopped.won.astype(bool)
    stopped["stop"] = ["environment error" if one else "done" for one in lost]
    write_records(tmp_path / "failed" / "trajectories" / "3.parquet", stopped.to_dict("records"))
    with pytest.raises(ValueError, match="no two tasks"):
        contrasts(tmp_path / "failed", 3)
    again = [*SIBLINGS[:4], ("b", False, [*WON[:1], ("look", "at one"), ("left", "at zero")])]
    assert contrasts(run_of(tmp_path / "again", again), 3)[0].lost == "left", "first visits of a state count"


def test_actions_of_one_task_are_named_by_their_verb_and_the_tasks_words() -> None:
    text = "buy a linen coat in red"
    assert forms("click[b12]", "click[red]", text, {"click[b12]"}) == ("click[b12]", "click with words of the task")
    assert forms("search[linen coat]", "search[linen]", text, ()) == (
        "search with words of the task, more",
        "search with words of the task, fewer",
    )
    assert forms("click[b12]", "click[b13]", text, ()) is None


def test_texts_are_bounded_and_chat_tokens_are_words() -> None:
    special = {"<|im_start|>", "[INST]", "</s>"}
    text = bounded("<|im_start|>system\nYou [INST] are </s> <<b>> " + "x" * 900, 40, special)
    assert "\n" not in text and len(text) <= 300 and not any(one in text for one in ("<", ">", "[INST]"))
    assert bounded("Do click[< prev], not <b>click</b>.", 40) == "Do click[< prev], not b click /b ."
    assert len(bounded("word " * 100, 40).split()) == 40
    with pytest.raises(ValueError, match="an empty text"):
        bounded(" <> ", 8)


def test_a_malformed_answer_costs_itself_and_duplicates_are_merged(tmp_path: Path) -> None:
    (one,) = contrasts(run_of(tmp_path, SIBLINGS), 3)
    good = {"title": "Right", "text": "Go right at one.", "when": "At one."}
    answers: list[Any] = [good, ["no", "mapping"], {"title": "Right"}, good | {"text": 7}, good | {"text": ""}, good]
    found, malformed = propose([one] * 6, lambda contrast: answers.pop(0))
    assert len(found) == 2 and len(malformed) == 4
    (merged,) = distinct(found, load_encoder("lexical"))
    assert merged.text == "Go right at one." and merged.turns == one.turns * 2
    with pytest.raises(ValueError, match="no answer that can be used"):
        propose([one], lambda contrast: {})


def test_an_endpoint_words_a_contrast_and_its_nonsense_costs_itself(tmp_path: Path) -> None:
    (one,) = contrasts(run_of(tmp_path, SIBLINGS), 3)
    said = 'Here it is: {"title": "Go right", "text": "Go <b>right</b> at one.", "when": "At one."} Good luck!'
    answers: list[Any] = ["I would rather not.", f"<think>{{hm}}</think>{said}", "{]}", None]
    with answering(lambda question: answers.pop(0)) as (url, asked):
        found, malformed = propose([one] * 4, write.ByEndpoint(url, "author"))
    assert [proposal.text for proposal in found] == ["Go b right /b at one."] and len(malformed) == 3
    question = asked[0]["messages"][0]["content"]
    assert asked[0]["model"] == "author" and "Agents that won did: right" in question and "It saw: at one" in question


def test_a_written_bank_has_a_type_a_category_and_says_where_it_comes_from() -> None:
    found = [Proposal("two", "Go", GOOD, "At one.", ("3/a/0/1", "3/a/1/1"), "web-t01")]
    found += [replace(found[0], category=name, id=f"web-t{number:02d}") for number, name in ((2, "three"), (3, "two"))]
    bank = SkillBank(bank_of(found, "webshop", "alignopsd skills write run"), "new")
    assert [[one.id for one in kind.skills] for kind in bank.task_types] == [["web-t01", "web-t03"], ["web-t02"]]
    assert bank.version == "alignopsd skills write run" and bank.environment == "webshop"
    assert bank.task_types[0].skills[0].when == "At one. (2 turns, such as 3/a/0/1)"
    assert bank.retrieve("any task", "three").skills[0].id == "web-t02"
    assert names_of("webshop_trips") == ("web", "webshop") and names_of("my_maze2") == ("mymaze", "my_maze2")


def written(policy: Path, run: Path, output: Path, *more: str) -> list[str]:
    return ["write", str(run), "--output", str(output), *measured(policy, *more)]


def test_only_what_helps_is_written_and_nothing_is_overwritten(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run, new = run_of(tmp_path / "run", SIBLINGS, "two"), tmp_path / "new.json"
    words = {"title": "go", "when": "always"}
    monkeypatch.setattr(write, "in_own_words", lambda one: words | {"text": GOOD})
    cli.main(["skills", *written(policy, run, new)])
    assert "none helps, so no bank is written" in capsys.readouterr().out and not new.exists(), "it reads no skill"
    tried = json.loads(new.with_suffix(".written.json").read_text())
    assert tried["kept"] == 0 and tried["proposals"][0]["turns"][0] == "3/a/0000/1"

    monkeypatch.setattr(write, "open_bench", lambda given, session: bench(36, needs=(3,)))
    cli.main(["skills", *written(policy, run, new, "--episodes", "12")])
    bank = SkillBank.load(new)
    assert [one.text for one in bank.task_types[0].skills] == [GOOD] and "skills write" in bank.version
    before = new.read_bytes()
    assert "never overwritten" in ends(written(policy, run, new), capsys) and new.read_bytes() == before


def test_skills_of_an_earlier_bank_compete_with_the_new_ones(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What does not help any more is dropped, what helps keeps its words, and no version is overwritten."""
    run, old, new = run_of(tmp_path / "run", SIBLINGS, "three"), tmp_path / "old.json", tmp_path / "new.json"
    words = {"title": "go", "when": "always"}
    monkeypatch.setattr(write, "in_own_words", lambda one: words | {"text": "pick zero"})
    monkeypatch.setattr(write, "open_bench", lambda given, session: bench(64, needs=(3,)))
    before = [Proposal("three", "go", text, "Then.", ("9/z/0/1",)) for text in (GOOD, HARMFUL)]
    numbered = [replace(one, id=f"maze-t{place:02d}") for place, one in enumerate(before, 1)]
    old.write_text(json.dumps(bank_of(numbered, "corridor", "alignopsd skills write outputs/before")))
    cli.main(["skills", *written(policy, run, new, "--bank", str(old), "--episodes", "160")])
    tried = json.loads(new.with_suffix(".written.json").read_text())["proposals"]
    assert {one["text"]: one["verdict"] for one in tried} == {GOOD: HELPS, HARMFUL: HARMS, "pick zero": UNTOLD}
    (kept,) = SkillBank.load(new).task_types[0].skills
    assert (kept.text, kept.when) == (GOOD, "Then. (1 turns, such as 9/z/0/1)")
    assert HARMFUL in old.read_text()
    assert "give a bank that alignopsd skills write made" in ends(
        written(policy, run, tmp_path / "other.json", "--bank", "webshop"), capsys
    )


def test_what_can_not_be_written_from_is_refused(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    new = tmp_path / "new.json"
    assert "no run in" in ends(written(policy, tmp_path / "gone", new), capsys)
    assert "no trajectories in" in ends(written(policy, tmp_path, new), capsys)
    run = run_of(tmp_path / "run", SIBLINGS)
    unheard = ["--endpoint", "http://127.0.0.1:9/v1"]
    assert "no answer that can be used" in ends(written(policy, run, new, *unheard), capsys)
