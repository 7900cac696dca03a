"""The annotation protocol: what a sheet holds, what it may not hold, and agreement by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason='pip install "alignopsd-trl[studies]"')

from research.annotation import _compared, _kappa, agreement, export_sheet, main, read_annotations


def episode(rollout: str, span: list[int], category: str = "shoes") -> list[dict]:
    base = {"step": 0, "task": "t", "task_id": "t", "rollout": rollout, "category": category, "task_text": "a shoe"}
    base |= {"won": False, "score": 0.5, "reward": 0.0, "action": "a", "action_valid": True, "observation": ""}
    base |= {"thinking": "so", "credit_cut": ""}
    return [base | {"turn": at, "credit_span": one} for at, one in enumerate(span)]


def spanned() -> pd.DataFrame:
    return pd.DataFrame(episode("0", [0, 0, 1, 1, 1]) + episode("1", [0, 0, 0, 0], "hats"))


def test_a_sheet_goes_out_and_comes_back(tmp_path: Path) -> None:
    sheet = export_sheet(spanned(), tmp_path / "sheet.csv")
    table = pd.read_csv(sheet, keep_default_na=False)
    assert list(table.columns) == ["episode", "task_text", "turn", "thinking", "action", "observation", "goal"]
    assert "credit_span" not in sheet.read_text()
    with pytest.raises(ValueError, match="holds no annotation yet"):
        read_annotations(sheet)
    table.loc[(table.episode == "0/t/0") & table.turn.isin([0, 3]), "goal"] = "find it"
    table.to_csv(sheet, index=False)
    assert read_annotations(sheet) == {"0/t/0": ([3], 5)}
    agents = export_sheet(spanned(), tmp_path / "sheet.json", episodes=1, seed=1)
    content = json.loads(agents.read_text())
    assert len(content["episodes"]) == 1 and "functional_goal" in content["instructions"]
    turns = len(content["episodes"][0]["turns"])
    content["episodes"][0]["spans"] = [{"start_turn": 0, "end_turn": 1}, {"start_turn": 2, "end_turn": turns - 1}]
    agents.write_text(json.dumps(content))
    assert list(read_annotations(agents).values()) == [([2], turns)]
    for spans, message in (
        ([(0, 0), (1, turns - 1)], r"span \[0, 0\] has 1 turns, not 2 to 8"),
        ([(0, turns - 2)], "don't cover turns 0 to"),
    ):
        content["episodes"][0]["spans"] = [{"start_turn": start, "end_turn": end} for start, end in spans]
        agents.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            read_annotations(agents)
    with pytest.raises(ValueError, match="not 'sheet.txt'"):
        export_sheet(spanned(), tmp_path / "sheet.txt")


def test_agreement_by_hand() -> None:
    assert _compared([2, 5], [3, 5, 8], 10) == {"turns": 10, "cuts": 2, "noted": 3, "exact": 1, "near": 2}
    assert _compared([2, 3], [2], 6)["near"] == 1, "one boundary answers for one other"
    table = pd.DataFrame([{"turns": 6, "cuts": 2, "noted": 1, "exact": 1, "near": 1}])
    # five places; agreed on 4 (1 both, 3 neither): 0.8; by chance (2 * 1 + 3 * 4) / 25 = 0.56
    assert _kappa(table) == pytest.approx((0.8 - 0.56) / 0.44)
    found = agreement(spanned(), {"0/t/0": ([3], 5), "0/t/1": ([], 4)})
    assert found.numbers["exact"]["F1"][0] == 0.0 and found.numbers["within one turn"]["F1"][0] == 1.0
    assert found.numbers["mean span (turns)"] == {"method": 3.0, "annotated": 3.0}
    with pytest.raises(ValueError, match="isn't in the frame with as many turns"):
        agreement(spanned(), {"0/t/0": ([3], 6)})


def test_both_commands(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "trajectories").mkdir()
    spanned().to_parquet(tmp_path / "trajectories" / "step_000000.parquet")
    sheet = tmp_path / "sheet.csv"
    main(["sheet", str(tmp_path), "-o", str(sheet)])
    table = pd.read_csv(sheet, keep_default_na=False)
    table.loc[table.turn == 0, "goal"] = "find it"
    table.to_csv(sheet, index=False)
    main(["agreement", str(tmp_path), str(sheet)])
    assert "kappa" in capsys.readouterr().out
    assert json.loads((tmp_path / "analysis" / "agreement.json").read_text())["episodes"] == 2
