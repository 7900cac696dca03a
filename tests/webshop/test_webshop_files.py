"""Data files: cleaning rules by hand, and one clear error for each thing that can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from webshop_catalogues import entry, instruction, write

from alignopsd_trl.environments.base import DataError
from alignopsd_trl.environments.webshop.engine import json_stream
from alignopsd_trl.environments.webshop.engine.files import Cleaner, DataFiles
from alignopsd_trl.environments.webshop.engine.goals import GoalList
from alignopsd_trl.environments.webshop.engine.index import open_catalogue


def cleaned(folder: Path, **options: Any) -> list[dict[str, Any]]:
    return list(Cleaner(DataFiles.find(folder), progress=False, **options))


def test_cleaning_of_options_price_and_query(tmp_path: Path) -> None:
    (product,) = cleaned(write(tmp_path, [entry(pricing="from $1,299.00 to $14.9 or $3")]))
    assert product["options"] == {"color": ["red | blue", "green"], "size": ["m"]}
    assert (product["pricing"], product["Price"]) == ([1299.0, 14.9], "$1299.0 to $14.9")
    assert product["query"] == "shirts"
    assert product["Attributes"] == ["soft"]


def test_first_occurrence_wins_and_odd_identifiers_are_skipped(tmp_path: Path) -> None:
    items = [entry("nan"), entry("B0000000011"), entry(name="first"), entry(name="second"), entry("B000000002")]
    found = cleaned(write(tmp_path, items))
    assert [(product["asin"], product["name"]) for product in found][0] == ("B000000001", "first")
    assert len(found) == 2
    assert len(cleaned(tmp_path, num_products=4)) == 1  # raw entries, before any filter


def test_a_later_option_name_replaces_the_values_and_keeps_the_place(tmp_path: Path) -> None:
    options = {"Size": [{"value": "S"}], "color": [], "fit": None, "SIZE": [{"value": "L"}]}
    (product,) = cleaned(write(tmp_path, [entry(customization_options=options)]))
    assert list(product["options"].items()) == [("size", ["l"]), ("color", [])]


@pytest.mark.parametrize("missing", ["", None, ...])
def test_a_missing_price_is_a_hundred(tmp_path: Path, missing: Any) -> None:
    (product,) = cleaned(write(tmp_path, [entry(pricing=missing)]))
    assert (product["pricing"], product["Price"]) == ([100.0], "$100.0")


BAD_ENTRIES = [
    ("pricing", entry(pricing="12.50")),
    ("pricing", entry(pricing="$")),
    ("pricing", entry(pricing="$1.2.3")),
    ("pricing", entry(pricing=12.5)),
    ("name", entry(name=...)),
    ("full_description", entry(full_description=None)),
    ("images", entry(images=[])),
    ("images", entry(images=...)),
    ("small_description", entry(small_description=[1])),
    ("customization_options", entry(customization_options={"color": [{"text": "red"}]})),
    ("customization_options", entry(customization_options=["red"])),
    ("asin", entry(asin="b000000001")),
    ("asin", entry(asin=7)),
]


@pytest.mark.parametrize(("field", "bad"), BAD_ENTRIES, ids=[str(number) for number in range(len(BAD_ENTRIES))])
def test_a_bad_record_is_named_or_repaired(tmp_path: Path, field: str, bad: dict[str, Any]) -> None:
    folder = write(tmp_path, [entry("B000000009"), bad], attributes={})
    with pytest.raises(DataError, match=rf"items_shuffle\.json: record 1.*field '{field}'.*lenient=True"):
        cleaned(folder)
    cleaner = Cleaner(DataFiles.find(folder), lenient=True, progress=False)
    assert [product["asin"] for product in cleaner][0] == "B000000009"
    assert cleaner.repairs.total() == 1


BROKEN = [
    ("{}", {}, "not a list"),
    ("7", {}, "not a list"),
    ("", {}, "not a list"),
    (json.dumps([entry(), entry("B000000002")])[:-200], {}, "record 1 is truncated"),
    (json.dumps([entry()])[:-1], {}, "after record 0"),
    ("[1 2]", {}, "record 0"),
    ([[]], {}, r"record 0.*is a list, not an object"),
    ([entry()], "[]", "top level is a list"),
    ([entry()], '{"a": ', "cannot be read as JSON"),
]


@pytest.mark.parametrize(("items", "attributes", "problem"), BROKEN, ids=map(str, range(len(BROKEN))))
def test_broken_files(tmp_path: Path, items: Any, attributes: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        cleaned(write(tmp_path, items, attributes=attributes))


def test_streaming_in_tiny_pieces_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [entry(f"B{number:09d}", name='日本 \\ " é' * number) for number in range(5)]
    folder = write(tmp_path, json.dumps(items, indent=2, ensure_ascii=False), attributes={})
    whole = cleaned(folder)
    monkeypatch.setattr(json_stream, "CHUNK", 7)
    assert cleaned(folder) == whole
    assert len(whole) == 5


def test_missing_files_and_ambiguous_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        DataFiles.find(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"none called items_shuffle\*\.json"):
        DataFiles.find(tmp_path)
    for name in ("items_shuffle_1000", "items_shuffle_100", "items_ins_v2"):
        (tmp_path / f"{name}.json").write_text("[]")
    with pytest.raises(DataError, match="several"):
        DataFiles.find(tmp_path)
    with pytest.raises(DataError, match=r"none called items_ins_v2_1000\.json"):
        DataFiles.find(tmp_path, "_1000")


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({}, "is missing"),
        ({"B000000001": instruction(instruction_attributes=[])}, "'instruction_attributes': is empty"),
    ],
)
def test_products_without_an_instruction_record(tmp_path: Path, attributes: Any, problem: str) -> None:
    items = [entry(), entry("B000000002")]
    attributes = {"B000000002": instruction(), **attributes}
    catalogue = open_catalogue(write(tmp_path / "data", items, attributes), cache_dir=tmp_path, progress=False)
    with pytest.raises(DataError, match=rf"items_ins_v2\.json: B000000001.*{problem}"):
        GoalList(catalogue)
    assert len(GoalList(catalogue, lenient=True)) == 2


@pytest.mark.parametrize("first", [entry(), entry(customization_options={"color": []})], ids=["null", "no options"])
def test_a_null_instruction_or_an_empty_list_of_options_makes_no_goal(first: dict[str, Any], tmp_path: Path) -> None:
    told = instruction() if first["customization_options"] == {"color": []} else instruction(None)
    attributes = {"B000000001": told, "B000000002": instruction()}
    data = write(tmp_path / "data", [first, entry("B000000002")], attributes)
    goals = GoalList(open_catalogue(data, cache_dir=tmp_path, progress=False))
    assert {goals[index]["asin"] for index in range(len(goals))} == {"B000000002"}


def test_no_goals_at_all_is_an_error(tmp_path: Path) -> None:
    catalogue = open_catalogue(write(tmp_path / "data", [entry()]), cache_dir=tmp_path, progress=False)
    with pytest.raises(ValueError, match="no human goals"):
        GoalList(catalogue, human_goals=True)


def test_incomplete_human_records_are_named(tmp_path: Path) -> None:
    folder = write(
        tmp_path, [entry()], human={"B000000001": [{"instruction": "a shirt", "instruction_attributes": []}]}
    )
    with pytest.raises(DataError, match=r"items_human_ins\.json: B000000001, record 0, field 'instruction_options'"):
        cleaned(folder)
