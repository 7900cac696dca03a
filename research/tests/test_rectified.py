"""Matched views taken apart: the parts add up, and equal prompts say equal things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from alignopsd_trl.commands.measure.commands import run_measure as measure
from research.rectified.__main__ import PLACES, main, places
from research.rectified.views import Views, ask


def test_words_of_a_response_have_their_places() -> None:
    said = ["<think>", "here", " far", " so ", "none", " ; so ", "open", " it", "</think><action>", "open", "</action>"]
    found = [PLACES[one] for one in places(said)]
    assert found[1:3] == ["situation"] * 2 and found[4] == "situation", "the plan is after the last so"
    assert found[6:8] == ["plan"] * 2 and found[9] == "action" and {found[0], found[5], found[8]} == {"marks"}
    assert [PLACES[one] for one in places(["ready", " to", " buy", "<end>"])] == ["situation"] * 3 + ["marks"]


def test_aligned_gaps_are_what_a_history_and_the_skill_do(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    student, own, one = (-torch.rand(3, 4, generator=draw) for _ in range(3))
    pairs = {"source": torch.tensor([1, 2, 0]), "target": torch.tensor([0, 0, 1])}
    similarity, every = torch.tensor([0.85, 0.95, 1.0]), torch.ones(3, dtype=torch.bool)
    views = Views(
        [None] * 3, [], [], torch.ones(3, 4).bool(), student, own, **pairs, similarity=similarity, retained=every,
        same=every, skilled=one, ordinary=one - (own - student)[pairs["target"]],
    )  # fmt: skip
    gaps = views.gaps(every)
    torch.testing.assert_close(gaps["history"] + gaps["skill"], gaps["aligned"])
    torch.testing.assert_close(gaps["source_baseline"], gaps["own"])
    assert not torch.allclose(gaps["rectified"][:2], gaps["own"][:2])
    assert torch.equal(gaps["rectified"][2], gaps["own"][2]), "it has no source"
    assert torch.equal(views.gaps(~every)["rectified"], gaps["own"])
    torch.testing.assert_close(
        views.gaps(torch.tensor([False, False, True]), certain=True)["rectified"][0], own[0] - student[0]
    )


def test_the_command_says_whose_views_take_credit_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "measured"
    known = [
        "--model",
        "tiny_hops",
        "--environment",
        "searchqa_hops",
        "--tasks",
        "3",
        "--rollouts",
        "2",
    ]
    measure([*known, "--methods", "align_opsd", "--quiet", "--output", str(folder)])
    found = main([str(folder), "--model", "tiny_hops", "--output", str(tmp_path / "apart.json")])
    assert found == json.loads((tmp_path / "apart.json").read_text())
    kinds = found["sources"]
    for one, other in (("same prompt", "another prompt"), ("same decision", "another decision")):
        assert kinds[one]["sources"] + kinds[other]["sources"] == pytest.approx(1.0)
        assert kinds[one]["squares of history"] + kinds[other]["squares of history"] == pytest.approx(1.0)
    assert kinds["same prompt"]["squares of history"] == pytest.approx(0.0, abs=1e-6)
    assert kinds["all"]["rectified"]["r_within"] == found["signals"]["rectified"]["r_within"]
    same = kinds["same prompt"]["rectified"]["r_within"]
    assert same["value"] == pytest.approx(found["signals"]["own"]["r_within"]["value"], abs=1e-3)
    for signal in ("own", "history"):
        assert sum(row[f"squares of {signal}"] for row in found["words"].values()) == pytest.approx(1.0)
    assert "matched" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no parts/identity.json"):
        next(ask(tmp_path, "tiny_hops"))
    with pytest.raises(ValueError, match="other weights"):
        next(ask(folder, "tiny_pairs"))
