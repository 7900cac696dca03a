from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.banks import sentences_of

import alignopsd_trl
from alignopsd_trl.encoder import Encoder, load_encoder
from alignopsd_trl.skills import SkillBank, SkillBankError, load_skills, render, skill_budget
from alignopsd_trl.skills import bank as banks

NAMES = ("alfworld", "searchqa", "webshop")
FOLDER = Path(alignopsd_trl.__file__).parent / "data" / "skills"
LEGGINGS = "i need machine washable women's leggings in black, size large, and price lower than 40.00 dollars"


def content(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def lexical() -> Encoder:
    return load_encoder("lexical")


@pytest.mark.parametrize(("name", "general", "types", "skills"), [
    ("alfworld", 9, 6, 24), ("webshop", 9, 10, 27), ("searchqa", 9, 8, 25)
])  # fmt: skip
def test_shipped_banks_are_valid(name: str, general: int, types: int, skills: int) -> None:
    bank = SkillBank.load(name)
    assert (bank.environment, bank.version) == (name, "1.0")
    assert (len(bank.general), len(bank.task_types), len(bank.mistakes)) == (general, types, 8)
    assert sum(len(kind.skills) for kind in bank.task_types) == skills
    assert SkillBank.load(bank) is bank
    assert SkillBank.load(FOLDER / f"{name}.json").general == bank.general


def test_identifiers_are_unique_over_all_banks() -> None:
    banks = [SkillBank.load(name) for name in NAMES]
    ids = [s.id for b in banks for s in (*b.general, *b.mistakes, *(x for kind in b.task_types for x in kind.skills))]
    assert len(ids) == len(set(ids)) == 27 + 24 + 76


BREAKS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda b: b.update(schema="skillbank/2"), "bank: field 'schema' is 'skillbank/2'; write 'skillbank/1'"),
    (lambda b: b.pop("version"), "bank: field 'version' is missing; write a string"),
    (lambda b: b.update(notes="x"), "bank: field 'notes' is unknown; remove it"),
    (lambda b: b.update(general=[]), r"bank: field 'general' is \[\]; write a list with at least one entry"),
    (lambda b: b.update(task_types=[]), "bank: field 'task_types'"),
    (lambda b: b.update(mistakes={}), "bank: field 'mistakes' is {}; write a list"),
    (lambda b: b["general"].insert(0, "text"), r"general\[0\] is a str; make it an object with id, title"),
    (lambda b: b["general"][1].pop("when"), r"general\[1\]: field 'when' is missing"),
    (lambda b: b["general"][1].update(id="web-g01"), r"general\[1\]: field 'id' is 'web-g01', which is taken"),
    (lambda b: b["mistakes"][0].update(id="web-t01"), r"mistakes\[0\]: field 'id' is 'web-t01'; write web-m and two"),
    (lambda b: b["general"][1].update(id="alf-g02"), r"general\[1\]: field 'id' is 'alf-g02'; write web-g"),
    (lambda b: b["general"][2].update(text="Write <act> first."), "web-g03: field 'text' contains the tag '<act>'"),
    (lambda b: b["general"][2].update(title="</think >"), "web-g03: field 'title' contains the tag"),
    (lambda b: b["general"][2].update(text="word " * 46), "web-g03: field 'text' has 46 words; shorten it to 45"),
    (lambda b: b["general"][2].update(text="  "), "web-g03: field 'text' is '  '; write a text"),
    (lambda b: b["task_types"][1].update(key="apparel"), r"task_types\[1\]: field 'key' is 'apparel', which is taken"),
    (lambda b: b["task_types"][1].update(group="kind"), "footwear: field 'group' is 'kind'; write one of task"),
    (lambda b: b["task_types"][1].update(skills=[]), "footwear: field 'skills'"),
    (lambda b: b["task_types"][1]["skills"][0].pop("text"), r"footwear.skills\[0\]: field 'text' is missing"),
    (lambda b: b["task_types"][1]["match"].update(regex=["x"]), "footwear.match: field 'regex' is unknown"),
    (lambda b: b["task_types"][1].update(match=[]), "footwear.match is a list"),
    (lambda b: b["task_types"][1]["match"].update(keywords="shoe"), "footwear.match: field 'keywords' is 'shoe'"),
    (lambda b: b["mistakes"][7].update(applies_to=["shoes"]), "web-m08: field 'applies_to' names 'shoes', no task"),
    (lambda b: b["mistakes"][7].update(applies_to=[]), "web-m08: field 'applies_to'"),
    (lambda b: b["mistakes"][7].update(instead="so " * 46), "web-m08: field 'instead' has 46 words"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), BREAKS, ids=[message for _, message in BREAKS])
def test_a_broken_bank_is_one_error_with_file_record_field_and_remedy(
    damage: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    broken = content("webshop")
    damage(broken)
    path = tmp_path / "bank.json"
    path.write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(SkillBankError, match=f"bank.json: {message}"):
        SkillBank.load(path)


def _hint(task_text: str, task_key: str | None, data_source: str | None) -> str:
    return f"- Look for {task_text} first." if task_text else ""


def test_a_function_may_stand_where_a_bank_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_skills(_hint)
    block = found.block("it", None, None, len, 100)
    assert (block.text, block.ids) == ("- Look for it first.", ("_hint",))
    assert found.block("", None, None, len, 100).ids == () and len(found.checksum) == 16
    with pytest.raises(
        SkillBankError, match="function _hint has 20 tokens for the task 'it', but skill_tokens=5; shorten"
    ):
        found.block("it", None, None, len, 5)
    with pytest.raises(SkillBankError, match="<lambda> returned None; return a text"):
        load_skills(lambda *task: None).block("it", None, None, len, 5)
    (tmp_path / "hints_of_mine.py").write_text("def hint(text, key, source):\n    return 'Look.'\n")
    monkeypatch.chdir(tmp_path)
    assert load_skills("hints_of_mine:hint").block("it", None, None, len, 5).text == "Look."
    with pytest.raises(SkillBankError, match="there is no function 'other' in .*hints_of_mine.py"):
        load_skills("hints_of_mine:other")
    with pytest.raises(SkillBankError, match="there is no module 'no_hints'; it must be importable"):
        load_skills("no_hints:hint")
    assert load_skills("webshop").environment == "webshop"


def test_a_function_may_read_the_row_and_a_column_may_stand_for_one() -> None:
    row = {"hint": "Left.", "steps": ["Go left.", "Stop."], "none": None, "odd": 3}
    found = load_skills(lambda task_text, row: f"{task_text}: {row['hint']}")
    assert found.reads_row and found.block("it", None, None, len, 100, row).text == "it: Left."
    texts = {name: load_skills(name, columns=row).block("it", None, None, len, 20, row).text for name in list(row)[:3]}
    assert texts == {"hint": "Left.", "steps": "Go left.\nStop.", "none": ""}
    with pytest.raises(SkillBankError, match="column 'odd' holds 3"):
        load_skills("odd", columns=row).block("it", None, None, len, 20, row)
    with pytest.raises(SkillBankError, match="column 'hint' has 5 tokens for the task 'it', but skill_tokens=4"):
        load_skills("hint", columns=row).block("it", None, None, len, 4, row)
    with pytest.raises(SkillBankError, match="names a column that the row of 'it' does not have"):
        load_skills("hint", columns=row).block("it", None, None, len, 20, {})
    with pytest.raises(SkillBankError, match="'hint' is unknown; .* a column of the tasks, or module"):
        load_skills("hint")
    with pytest.raises(SkillBankError, match=r"column of the tasks \(hint, steps, none, odd\)"):
        load_skills("hnt", columns=row)


def test_a_function_that_takes_other_arguments_is_named() -> None:
    for function in (lambda a, b, c, d: "", lambda a: "", lambda *, task_text: ""):
        with pytest.raises(SkillBankError, match="<lambda>.*can't be called with .task_text, task_key, data_source."):
            load_skills(function)
    assert load_skills(lambda *task: "").reads_row is False
    assert load_skills(lambda text, row, more=1: "").reads_row is False


def test_all_that_is_wrong_with_a_bank_is_said_in_one_pass() -> None:
    broken = content("webshop")
    first = broken["general"][0]
    first |= {"title": "", "text": "<b>x</b>", "more": 1}
    del first["when"], broken["general"][1]["title"], broken["task_types"][1]["label"]
    broken["version"] = ""
    kind = broken["task_types"][0]
    kind |= {"group": "no group", "match": {"keywords": [1]}}
    kind["skills"][0]["id"] = "web-x01"
    broken["mistakes"][0] |= {"id": "web-x02", "applies_to": ["shoes"]}
    with pytest.raises(SkillBankError) as found:
        SkillBank(broken, "bank.json")
    fields = re.findall(r"field '(\w+)' ", str(found.value))
    assert fields == "version when more title text title group id keywords label id applies_to".split()


def test_missing_and_unreadable_banks(tmp_path: Path) -> None:
    with pytest.raises(
        SkillBankError,
        match="'wobshop' is unknown; did you mean 'webshop'. use one of alfworld, alfworld_pairs, searchqa,",
    ):
        SkillBank.load("wobshop")
    (tmp_path / "cut.json").write_text('{"schema": "skill', encoding="utf-8")
    with pytest.raises(SkillBankError, match="cut.json: file is no UTF-8 JSON"):
        SkillBank.load(tmp_path / "cut.json")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(SkillBankError, match="list.json: bank is a list"):
        SkillBank.load(tmp_path / "list.json")


def test_every_game_type_finds_its_own_type(lexical: Encoder) -> None:
    for encoder in (None, lexical):
        bank = SkillBank.load("alfworld", encoder)
        for kind in bank.task_types:
            found = bank.retrieve("put a clean mug in the fridge.", task_key=kind.key)
            assert found.type_keys == (kind.key,)
            assert {skill.id for skill in found.skills} == {skill.id for skill in kind.skills}


@pytest.mark.parametrize("name", NAMES)
def test_the_label_of_a_type_retrieves_the_type(name: str, lexical: Encoder) -> None:
    bank = SkillBank.load(name, lexical)
    for kind in bank.task_types:
        assert kind.key in bank.retrieve(kind.label).type_keys


def test_keywords_decide_without_an_encoder() -> None:
    bank = SkillBank.load("webshop")
    assert bank.retrieve(LEGGINGS).type_keys == ("apparel", "price_limited", "option_heavy")
    assert bank.retrieve("a Phone CASE with light").type_keys == ("electronics", "attribute_heavy")
    assert bank.retrieve("sneakers in brushed suede").type_keys == ("footwear",)
    assert bank.retrieve("steak, a showcase and coconut").type_keys == ("apparel",)  # no whole word: the first type
    assert bank.retrieve("pack of 6 under 20").type_keys == ("price_limited", "quantity")
    assert bank.retrieve(LEGGINGS).scores == (0.0,) * 8


def test_keywords_come_before_lexical_cosines_but_not_before_meaning(lexical: Encoder) -> None:
    plain, scored = SkillBank.load("webshop"), SkillBank.load("webshop", lexical)
    for request in (LEGGINGS, "usb cable", "pack of 6 gluten free snack"):
        assert scored.retrieve(request).type_keys == plain.retrieve(request).type_keys
    meaning = load_encoder(lambda texts: torch.tensor([[1.0, 0.0] if "shoes" in t else [0.0, 1.0] for t in texts]))
    assert SkillBank.load("webshop", meaning).retrieve("shirt to go with shoes").type_keys == ("footwear",)
    assert scored.retrieve("shirt to go with shoes").type_keys[0] == "apparel"


def test_without_an_encoder_everything_is_in_file_order() -> None:
    found = SkillBank.load("webshop").retrieve("leggings")
    assert found.ids == (
        "web-t01", "web-t02", "web-t03", "web-t04", "web-g01", "web-g02", "web-g03", "web-g04",
        "web-m08", "web-m01", "web-m02", "web-m03",
    )  # fmt: skip


def test_a_data_source_restricts_the_types(lexical: Encoder) -> None:
    plain, scored = SkillBank.load("searchqa"), SkillBank.load("searchqa", lexical)
    assert plain.retrieve("who?", data_source="nq").type_keys == ("single_hop",)
    assert plain.retrieve("who?", data_source="popqa").type_keys == ("entity_attribute",)
    assert plain.retrieve("who?", data_source="triviaqa").type_keys == ("trivia_clue",)
    comparison = next(kind for kind in plain.task_types if kind.key == "comparison").description
    numeric = next(kind for kind in plain.task_types if kind.key == "numeric").description
    assert scored.retrieve(comparison).type_keys == ("comparison",)
    assert scored.retrieve(comparison, data_source="hotpotqa").type_keys == ("comparison",)
    assert scored.retrieve(comparison, data_source="popqa").type_keys != ("comparison",)
    assert scored.retrieve(numeric, data_source="popqa").type_keys == ("numeric",)
    assert scored.retrieve(comparison, data_source="text") == scored.retrieve(comparison)


def test_constraints_join_above_the_threshold_and_at_most_two(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = {"request": [1.0, 0.0]}
    cosines = {"option_heavy": 0.6, "price_limited": 0.5, "attribute_heavy": 0.4, "quantity": 0.7, "grocery": 0.45}
    for kind in SkillBank.load("webshop").task_types:
        cosine = cosines.get(kind.key, 0.1)
        vectors[f"{kind.label}. {kind.description}"] = [cosine, (1 - cosine**2) ** 0.5]
    encoder = load_encoder(lambda texts: torch.tensor([vectors.get(text, [0.0, 1.0]) for text in texts]))

    def types(threshold: float) -> tuple[str, ...]:
        monkeypatch.setattr(banks, "CONSTRAINT_THRESHOLD", threshold)
        return SkillBank.load("webshop", encoder).retrieve("request").type_keys

    assert types(0.3) == ("grocery", "quantity", "option_heavy")
    assert types(0.65) == ("grocery", "quantity")
    assert types(0.9) == ("grocery",)


def test_ties_follow_file_order_and_cosines_are_rounded_to_six_decimals() -> None:
    def nearly_equal(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[1.0, 1e-8 * (len(text) % 7)] for text in texts])

    found = SkillBank.load("webshop", load_encoder(nearly_equal)).retrieve(LEGGINGS)
    assert found.type_keys == ("apparel", "option_heavy", "price_limited")
    assert [skill.id for skill in found.skills] == [f"web-t{n:02d}" for n in (1, 2, 3, 4, 20, 21, 22, 23)]
    assert found.scores == (1.0,) * 8


def test_a_task_is_encoded_once_and_alone() -> None:
    calls: list[list[str]] = []

    def encode(texts: list[str]) -> torch.Tensor:
        calls.append(texts)
        return torch.ones(len(texts), 2)

    bank = SkillBank.load("alfworld", load_encoder(encode))
    first = bank.retrieve("heat an egg")
    before = len(calls)
    assert bank.retrieve("heat an egg") is first and len(calls) == before
    assert all(len(texts) == 1 for texts in calls)
    bank.retrieve("cool an egg")
    assert set(sum(calls[before:], [])) == {"cool an egg"}  # the vectors of the bank were kept


def test_specific_mistakes_come_before_those_for_all_tasks(lexical: Encoder) -> None:
    found = SkillBank.load("alfworld", lexical).retrieve("x", "pick_heat_then_place_in_recep")
    assert [mistake.id for mistake in found.mistakes] == ["alf-m04", "alf-m05", "alf-m01", "alf-m02"]
    assert [skill.id for skill in found.general] == ["alf-g01", "alf-g02", "alf-g03", "alf-g04"]


SCRIPT = """
import json, sys
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.skills import SkillBank
bank = SkillBank.load("webshop", load_encoder("lexical"))
found = {text: bank.retrieve(text) for text in json.loads(sys.argv[1])}
print(json.dumps({text: [f.type_keys, f.ids, f.scores] for text, f in sorted(found.items())}))
"""


@pytest.mark.full
def test_processes_and_orders_agree() -> None:
    texts = [LEGGINGS, "red wine glass set of 4", "usb cable", "keto snack"]
    root = str(Path(alignopsd_trl.__file__).parent.parent)

    def run(order: list[str], seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        arguments = [sys.executable, "-c", SCRIPT, json.dumps(order)]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout

    assert json.loads(run(texts, "1")) == json.loads(run(texts[::-1], "2"))


def test_block_format_has_no_tags_or_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banks, "GENERAL", 1)
    monkeypatch.setattr(banks, "MISTAKES", 1)
    bank = SkillBank.load("webshop")
    block = render(bank.retrieve("leggings"), words, 10**6)
    lines = block.text.split("\n")
    assert lines[0] == "Guidance for this kind of task:"
    assert lines[1].startswith("- Garment and wearer first: Put the garment")
    assert lines[5].startswith("- Turn the request into a checklist: Write down")
    assert lines[6:] == [
        "Mistakes to avoid:",
        "- Accepting a women's item for men, or an accessory for a device. Check the type line before any detail.",
    ]
    assert block.ids == bank.retrieve("leggings").ids
    assert not {"<", ">", "#"} & set(block.text)


@pytest.mark.parametrize("name", NAMES)
def test_budget_drops_whole_items_from_the_end_of_the_rank(name: str) -> None:
    found = SkillBank.load(name).retrieve("size and price under 40 dollars")
    for budget in range(0, 500, 7):
        block = render(found, words, budget)
        assert block.ids == found.ids[: len(block.ids)]
        assert words(block.text) <= budget or block.ids == found.ids[:1]
        if len(block.ids) < len(found.ids):
            one_more = render(found, words, words(block.text) + 46 * 2 + 20)
            assert len(one_more.ids) > len(block.ids)  # nothing was dropped that fits
        assert ("Mistakes to avoid" in block.text) == any("-m" in identity for identity in block.ids)
    assert render(found, words, 0).ids == (found.skills[0].id,)


def test_budget_rule() -> None:
    assert [skill_budget(limit) for limit in (512, 2048, 4096, 400)] == [128, 512, 512, 100]


def test_texts_holds_every_sentence_of_a_block() -> None:
    bank = SkillBank.load("searchqa")
    known = list(sentences_of(bank))
    block = render(bank.retrieve("when?", data_source="nq"), words, 10**6).text
    for line in block.split("\n"):
        assert not line.startswith("- ") or any(text in line for text in known)
    assert len(known) == 9 + 25 + 2 * 8


def test_a_bank_from_a_dictionary_is_left_alone() -> None:
    source = content("alfworld")
    before = copy.deepcopy(source)
    SkillBank(source, "mine").retrieve("examine the pen with the desklamp")
    assert source == before
