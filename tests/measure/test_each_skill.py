"""``alignopsd measure --each_skill``: planted skills are found with a policy that obeys what it reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fakes import corridor
from fakes.own_task import fails
from fakes.toy import build_tokenizer

from alignopsd_trl.commands import cli
from alignopsd_trl.commands.measure.skill_worth import HARMS, HELPS, UNTOLD, WHOLE, Bench, measure, worths
from alignopsd_trl.rollout.sampler import Responses
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


@pytest.mark.full
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


def test_a_skill_that_no_task_retrieves_is_named() -> None:
    held = bench(4, needs=(2, 1))
    bank = SkillBank(maze_bank([skill(1, GOOD)], [skill(2, GOOD)]), "bank")
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
    few = "--each_skill --environment fakes.corridor --tasks 12 --encoder lexical --episodes 24 --quiet".split()
    return [*few, "--model", str(policy), *more]


def test_the_command_leaves_a_page_json_and_a_table(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bank, out = tmp_path / "bank.json", tmp_path / "out"
    bank.write_text(json.dumps(maze_bank([skill(1, GOOD)], [skill(2, USELESS)])))
    cli.main(["measure", *measured(policy, "--skill_bank", str(bank), "--output", str(out))])
    told, found = capsys.readouterr().out, json.loads((out / "skills.json").read_text())
    assert "| maze-t01 | go: hint right |" in told and "No task retrieves maze-t02" in told
    assert found["never_retrieved"] == ["maze-t02"] and found["plain_episodes"] == 24
    assert {one["skill"] for one in found["skills"]} == {WHOLE, "maze-g01", "maze-t01", "maze-t02"}


def test_what_can_not_be_checked_is_refused(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(maze_bank([])))
    for bank, said in (("no_bank", "no_bank' is unknown"), (str(empty), "field 'skills' is []")):
        fails(["measure", *measured(policy, "--skill_bank", bank)], said, capsys=capsys, lines=9)
    fails(["measure", *measured(policy, "--tasks", "1")], "must be 3 or more", capsys=capsys)
    fails("measure --each_skill --model /no/such --environment x".split(), "no folder", capsys=capsys)
