from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pandas as pd
import pytest
from toy import ToyEnvironment, build_model, build_tokenizer, toy_dataset

from alignopsd_trl.evaluation import Outcome, evaluate, main, mean_score, success_rate, summarise
from alignopsd_trl.policy.teacher import skill_source
from alignopsd_trl.skills import SkillBank
from environments import Suite, TaskPanel

PANEL = TaskPanel.of("toy", "test", list(toy_dataset(12)))


def test_intervals_are_wilsons_and_students() -> None:
    rate = success_rate([True] * 7 + [False] * 13)
    assert (rate.mean, rate.episodes) == (35.0, 20)
    assert (rate.low, rate.high) == pytest.approx((18.12, 56.71), abs=0.01)
    assert success_rate([False] * 10).low == 0.0 and success_rate([False] * 10).high == pytest.approx(27.75, abs=0.01)
    score = mean_score([0.0, 0.5, 1.0, 0.5])
    assert score.mean == 50.0 and score.high - 50.0 == pytest.approx(100 * 3.1824 * 0.40825 / 2, abs=0.01)


def _outcome(number: int, won: bool) -> Outcome:
    return Outcome(f"toy/{number}", "even" if number % 2 == 0 else "odd", won, float(won), 2, 1, "done")


def test_summary_has_both_means_and_only_categories_that_were_played() -> None:
    outcomes = [_outcome(number, won=number in (0, 1, 2)) for number in range(12)]
    result = summarise(PANEL, outcomes[::-1], skills=False, temperature=0.4, seed=0)
    assert result.success.mean == 25.0 and set(result.categories) == {"even", "odd"}
    assert result.success_macro == pytest.approx((100 * 2 / 6 + 100 * 1 / 6) / 2)
    assert [outcome.task_id for outcome in result.outcomes] == list(PANEL.task_ids)
    assert result.invalid_actions == 0.5 and PANEL.checksum in result.table()
    for wrong in (outcomes[1:], [*outcomes, outcomes[0]]):
        with pytest.raises(ValueError, match="cover"):
            summarise(PANEL, wrong, skills=False, temperature=0.4, seed=0)


def test_evaluation_is_a_function_of_the_seed() -> None:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer).eval()

    def play(**options):
        return evaluate(model, tokenizer, ToyEnvironment, PANEL, max_completion_length=10, **options)

    first, played = play(seed=1, temperature=1.0, batch_size=5)
    again, _ = play(seed=1, temperature=1.0, batch_size=5)
    assert first == again and len(played) == 12
    other, replayed = play(seed=2, temperature=1.0, batch_size=5)
    assert [t.turns[0].response_text for t in replayed] != [t.turns[0].response_text for t in played]
    greedy, _ = play(seed=1, temperature=0.0)
    assert greedy == play(seed=1, temperature=0.0)[0]
    source = skill_source(SkillBank.load("webshop"), tokenizer, 30)
    _, skilled = play(skills=source)
    assert all("Guidance" in turn.prompt_text for t in skilled for turn in t.turns)
    assert not any("Guidance" in turn.prompt_text for t in played for turn in t.turns)


def test_command_line_writes_result_and_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path / "policy")
    build_model(tokenizer).save_pretrained(tmp_path / "policy")
    module = types.ModuleType("toys.suite")
    module.suite = lambda **options: Suite(
        "toy", ToyEnvironment, toy_dataset, lambda name: PANEL, ("even", "odd"), {"options": options}, "webshop"
    )
    monkeypatch.setitem(sys.modules, "toys", types.ModuleType("toys"))
    monkeypatch.setitem(sys.modules, "toys.suite", module)
    arguments = ["--model", str(tmp_path / "policy"), "--environment", "toys.suite", "--limit", "5", "--skills"]
    arguments += ["--max_completion_length", "8", "--output", str(tmp_path / "out")]
    result = main([*arguments, "--environment_options", '{"level": 3}'])
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["episodes"] == result.episodes == 5 and content["suite"]["options"] == {"level": 3}
    assert content["panel"] == "test[:5]" and content["skills"] is True
    frame = pd.read_parquet(tmp_path / "out" / "trajectories" / "evaluation.parquet")
    assert frame.groupby("task").ngroups == 5
