"""The correlation with A_MC, taken apart by decision: parts add up, and each lies where its turns are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from research.where_lost import decision, kinds, main


def test_a_thought_is_named_by_its_plan() -> None:
    assert decision("asked sweater linen ; limit 160.00 ; so take the first hit") == "take the first hit"
    assert decision("open is mug ; so choose green") == "choose an option"
    assert decision("asked mug ; so search mug") == "search one word"
    assert decision("asked mug ; so search all its words") == "search all its words"
    assert decision("the rest does not fit ; so back , wrong title") == "go back" and decision("") == "nothing said"


def test_kinds_are_the_longest_beginnings_that_are_frequent() -> None:
    actions = ["click[buy now]"] * 10 + [f"click[{n}]" for n in range(10)] + ["search[lamp]", "go to bed"]
    names = kinds(actions, [str(place % 4) for place in range(len(actions))], least=0.2)
    assert names[0] == "click[buy now]" and names[12] == "click[ ..." and set(names[20:]) == {"other"}
    one = kinds(["go to a"] * 9 + ["go to b"] * 3, ["x"] * 9 + ["x", "y", "z"], least=0.2)
    assert set(one) == {"go to ...", "go to b"}
    asked = [f"<search>{place} of {place}</search>" for place in range(9)] + ["<answer>unknown</answer>"] * 6
    asked += [f"<answer>{place}</answer>" for place in range(3)]
    found = kinds(asked, [str(place % 5) for place in range(len(asked))])
    assert found == ["<search> ..."] * 9 + ["<answer>unknown</answer>"] * 6 + ["<answer> ..."] * 3
    assert kinds(["", "", "click[< prev]", "click[< prev]"], list("abab")) == ["(none)"] * 2 + ["click[< prev]"] * 2


def test_parts_of_r_add_up_and_lie_where_the_credit_is_wrong(tmp_path: Path, capsys) -> None:
    plans = ["so buy", "so take it"] * 2
    truth = [0.5, 0.1, 0.1, 0.1, -0.4, 0.0, -0.1, 0.1]
    columns = {
        "task": ["a"] * 8,
        "rollout": ["x"] * 4 + ["y"] * 4,
        "thinking": plans * 2,
        "action": ["click[buy]", "click[it]"] * 4,
        "outcome_advantage": [1.0] * 4 + [-1.0] * 4,
        **dict.fromkeys(("a_mc", "a_mc_half_0", "a_mc_half_1"), truth),
        "a_mc_error": [0.01] * 8,
        "credit align_opsd": [0.2, 1.2, 1.3, 1.3, -1.4, -0.8, -1.0, -0.8],
        "credit rlsd": [1.0 + one for one in truth[:4]] + [-1.0 + one for one in truth[4:]],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "turns.parquet")
    (tmp_path / "fidelity.json").write_text("{}")
    found = main([str(tmp_path), "--output", str(tmp_path / "lost.json")])
    assert found == json.loads((tmp_path / "lost.json").read_text())
    for side, rows in (("praised", slice(0, 4)), ("blamed", slice(4, 8))):
        one = np.array(columns["credit align_opsd"])[rows]
        r = np.corrcoef(one, truth[rows])[0, 1]
        assert sum(row["part_of_r"]["align_opsd"] for row in found[side]) == pytest.approx(r)
        assert sum(row["part_of_r"]["rlsd"] for row in found[side]) == pytest.approx(1.0)
        assert sum(row["share_of_credit"]["align_opsd"] for row in found[side]) == pytest.approx(1.0)
        assert sum(row["share"] for row in found[side]) == pytest.approx(1.0)
    first = found["praised"][0]
    assert first["decision"] == "buy" and first["turns"] == 2 and first["a_mc"]["value"] == pytest.approx(0.3)
    assert first["part_of_r"]["align_opsd"] < 0 < first["part_of_r"]["rlsd"]
    assert "| buy | 2 |" in capsys.readouterr().out
    by_action = main([str(tmp_path), "--by", "action"])
    assert {row["decision"] for row in by_action["praised"]} == {"click[buy]", "click[it]"}
