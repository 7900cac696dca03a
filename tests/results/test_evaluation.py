from __future__ import annotations

import json
import math
import random
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from fakes.own_task import fails
from fakes.sweeps import mostly_full
from fakes.toy import ToyEnvironment, build_model, build_tokenizer, toy_dataset
from fakes.trainers import make_trainer

from alignopsd_trl.commands.cli import main as alignopsd
from alignopsd_trl.commands.launch.evaluate import main
from alignopsd_trl.environments import Step, Suite, TaskPanel
from alignopsd_trl.records import turn_records
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.results.summary import Outcome, mean_score, success_rate, summarise
from alignopsd_trl.runs.health import RunStopped
from alignopsd_trl.skills import SkillBank, skill_source
from alignopsd_trl.turns import Seeds, Trajectory, Turn

PANEL = TaskPanel.of("toy", "test", list(toy_dataset(12)))


def test_intervals_are_wilsons_and_of_what_was_seen() -> None:
    rate = success_rate([True] * 7 + [False] * 13)
    assert (rate.mean, rate.episodes) == (35.0, 20)
    assert (rate.low, rate.high) == pytest.approx((18.12, 56.71), abs=0.01)
    assert success_rate([False] * 10).low == 0.0 and success_rate([False] * 10).high == pytest.approx(27.75, abs=0.01)
    score = mean_score([0.0, 0.5, 1.0, 0.5] * 10)
    assert score.mean == 50.0 and (score.low, score.high) == pytest.approx((39.0, 61.0), abs=1.5)
    near = mean_score([0.9] * 4 + [1.0] * 4)
    assert 90.0 <= near.low < near.mean < near.high <= 100.0 and near == mean_score([1.0, 0.9] * 4)  # in any order
    for few in (success_rate([True, True, False, True]), mean_score([0.0, 1.0, 0.4])):
        assert math.isnan(few.low) and math.isnan(few.high) and few.mean > 0


def _outcome(number: int, won: bool) -> Outcome:
    return Outcome(f"toy/{number}", "even" if number % 2 == 0 else "odd", won, float(won), 2, 1, "done")


def test_summary_has_both_means_and_only_categories_that_were_played() -> None:
    outcomes = [_outcome(number, won=number in (0, 1, 2)) for number in range(12)]
    result = summarise(PANEL, outcomes[::-1], skills=False, temperature=0.4, seed=0)
    assert result.success.mean == 25.0 and set(result.categories) == {"even", "odd"}
    assert result.success_macro == pytest.approx((100 * 2 / 6 + 100 * 1 / 6) / 2)
    assert [outcome.task_id for outcome in result.outcomes] == list(PANEL.task_ids)
    assert result.invalid_actions == 0.5 and PANEL.checksum in result.table()
    plain = summarise(PANEL, [replace(one, category="") for one in outcomes], skills=False, temperature=0.4, seed=0)
    assert [line.split()[0] for line in plain.table().splitlines()] == ["success", "all", "panel"], "none has a name"
    for wrong in (outcomes[1:], [*outcomes, outcomes[0]]):
        with pytest.raises(ValueError, match="cover"):
            summarise(PANEL, wrong, skills=False, temperature=0.4, seed=0)


class Unwritable:
    """Has a text when it is checked, and none when it is written."""

    asked = 0

    def __str__(self) -> str:
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("no text")
        return "a text"


class Tells(ToyEnvironment):
    def step(self, action: str) -> Step:
        return replace(super().step(action), info={"mine": Unwritable(), "nan": math.nan, "bytes": b"x"})


@pytest.mark.full
def test_a_panel_writes_what_it_played_where_an_object_can_not_be_written(tmp_path: Path) -> None:
    played = make_trainer(tmp_path, Tells).evaluate_panel(PANEL)
    assert played.environment_errors == 0
    assert {one["info"] for one in played.records if one["turn"] is not None} == {'{"unreadable": "RuntimeError"}'}


def test_the_info_of_a_record_is_strict_json() -> None:
    turn = Turn(0, "", [], [], info={"nan": math.nan, "bytes": b"x", "set": {1}, "odd": "\ud800", "at": {2: None}})
    (record,) = turn_records([Trajectory({}, "t", "0", Seeds(0, 0), turns=[turn])], 0)
    found = json.loads(record["info"], parse_constant=pytest.fail)
    assert found == {"nan": None, "bytes": "b'x'", "set": [1], "odd": "\ud800", "at": {"2": None}}
    record["info"].encode("ascii")


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
    module: Any = types.ModuleType("toys.suite")
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


@pytest.mark.parametrize("flag", ["--environment_options", "--chat_template_kwargs"])
def test_json_that_cannot_be_read_ends_in_a_sentence(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", "--model", "tiny", "--environment", "webshop_tiny", flag, "{bad"]
    fails(argv, f"{flag[2:]}='{{bad' is no JSON", "write a mapping", capsys=capsys)


def test_trained_and_untrained_rows_of_a_table_go_through_one_loop(tmp_path: Path) -> None:
    """The same weights, panel and seed give the same episodes, whoever plays them."""
    trainer = make_trainer(tmp_path, script=False, eval_temperature=0.7, top_k=0)
    by_trainer = trainer.evaluate_panel(PANEL, seed=5)
    options = {"max_prompt_length": 128, "max_completion_length": 12, "batch_size": trainer.rollouts.slots}
    by_model, _ = evaluate(trainer.model, build_tokenizer(), ToyEnvironment, PANEL, seed=5, temperature=0.7, **options)
    assert by_trainer == by_model
    greedy, _ = evaluate(trainer.model, build_tokenizer(), ToyEnvironment, PANEL, temperature=0.0, **options)
    assert trainer.evaluate_panel(PANEL, temperature=0.0) == greedy
    assert trainer.generation_config.do_sample and trainer.generation_config.temperature == 1.0
    assert len({outcome.turns for outcome in by_model.outcomes}) > 1


NARROWED = {"top_p": 0.8, "top_k": 9, "min_p": 0.02, "repetition_penalty": 1.3}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.full
def test_both_narrow_the_sampling_alike_and_the_models_own_taste_does_not_count(
    tmp_path: Path, temperature: float
) -> None:
    trainer, tokenizer = make_trainer(tmp_path, script=False, **NARROWED), build_tokenizer()
    played = trainer.evaluate_panel(PANEL, seed=5, temperature=temperature)
    options = {"max_prompt_length": 128, "max_completion_length": 12, "batch_size": trainer.rollouts.slots}
    options |= {"seed": 5, "temperature": temperature}
    plain, _ = evaluate(trainer.model, tokenizer, ToyEnvironment, PANEL, **options)
    trainer.model.generation_config.update(repetition_penalty=5.0, top_k=1, top_p=0.1, min_p=0.9, temperature=0.01)
    same, _ = evaluate(trainer.model, tokenizer, ToyEnvironment, PANEL, **options, **NARROWED)
    assert played == same != plain
    assert evaluate(trainer.model, tokenizer, ToyEnvironment, PANEL, **options)[0] == plain


def test_playing_leaves_random_state_and_mode_as_they_were(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer).train()
    state = torch.random.get_rng_state()
    evaluate(model, tokenizer, ToyEnvironment, PANEL, max_completion_length=4)
    assert model.training and torch.equal(torch.random.get_rng_state(), state)


def _seeds_of_an_evaluation(folder: Path, batch: int) -> dict[str, list[int]]:
    seen: dict[str, list[int]] = {}

    class Watched(ToyEnvironment):
        def reset(self, task_id: str, dynamics_seed: int, **columns: Any) -> Any:
            seen.setdefault(task_id, []).append(dynamics_seed)
            return super().reset(task_id=task_id, dynamics_seed=dynamics_seed, **columns)

    parts = {"eval_dataset": toy_dataset(4)}
    trainer = make_trainer(folder, Watched, parts=parts, per_device_eval_batch_size=batch, num_generations_eval=2)
    seen.clear()  # of the look that a trainer takes at its task
    trainer.evaluate()
    return {task: sorted(seeds) for task, seeds in seen.items()}


def test_episode_seeds_of_evaluate_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    small, large = (_seeds_of_an_evaluation(tmp_path / str(batch), batch) for batch in (2, 8))
    assert small == large and len(small) == 4
    assert all(len(set(seeds)) == 2 for seeds in small.values())


class OneOfFive(ToyEnvironment):
    """Wins the first task alone, and fails in tasks that it is told to fail in."""

    fails: tuple[str, ...] = ()

    def reset(self, task_id: str, **columns: Any) -> Any:
        self._task = task_id
        return super().reset(task_id=task_id, **columns)

    def step(self, action: str) -> Step:
        if self._task in self.fails:
            raise RuntimeError("the shop burnt down")
        won = self._task == "toy/0"
        return Step("zero", float(won), done=True, won=won, score=float(won))


FIVE = TaskPanel.of("toy", "five", list(toy_dataset(5)))


@pytest.mark.parametrize("batch", mostly_full([2, 3, 4, 5]))
def test_an_evaluation_of_rows_is_that_of_a_panel(tmp_path: Path, batch: int) -> None:
    trainer = make_trainer(
        tmp_path, OneOfFive, per_device_eval_batch_size=batch, parts={"eval_dataset": toy_dataset(5)}
    )
    found, panel = trainer.evaluate(), trainer.evaluate_panel(FIVE)
    assert found["eval_episodes/success"] == found["eval_success_or_score"] == 0.2 == panel.success.mean / 100
    assert found["eval_episodes/score"] == 0.2 and "eval_loss" not in found
    assert trainer.state.log_history[-1]["eval_episodes/success"] == 0.2


def test_other_rows_and_several_sets_are_evaluated_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, OneOfFive)
    found = trainer.evaluate({"all": toy_dataset(5), "rest": [{**row} for row in toy_dataset(4)][1:]})
    assert (found["eval_all_episodes/success"], found["eval_rest_episodes/success"]) == (0.2, 0.0)
    shown = capsys.readouterr().out
    assert "evaluation all: success 20.0 %" in shown and "evaluation rest: success 0.0 %" in shown
    assert trainer.predict(toy_dataset(2)).metrics["test_episodes/success"] == 0.5
    with pytest.raises(ValueError, match="evaluation: row 0 has no task_id"):
        trainer.evaluate(Dataset.from_dict({"target": ["one"]}))
    with pytest.raises(ValueError, match="evaluation is of type IterableDataset"):
        trainer.evaluate(toy_dataset(2).to_iterable_dataset())


def test_tasks_that_are_trained_on_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, OneOfFive, tasks=2)
    for _ in range(2):
        trainer.evaluate_panel(FIVE)
    assert capsys.readouterr().out.count("2 of the 5 tasks of panel five are trained on too (the first: 'toy/0')") == 1
    trainer.evaluate(toy_dataset(5).select([3, 4]))
    assert "trained on" not in capsys.readouterr().out


def test_failed_episodes_count_as_not_won_and_nothing_played_is_no_number(tmp_path: Path) -> None:
    some = type("Some", (OneOfFive,), {"fails": ("toy/1", "toy/2")})
    every = type("Every", (OneOfFive,), {"fails": FIVE.task_ids})
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    result, _ = evaluate(model, tokenizer, some, FIVE, max_completion_length=2)
    assert result.success.mean == 20.0 and "2 episodes failed and count as not won" in result.table()
    told = r"five: no episode could be played. The first reason: .*the shop burnt down"
    with pytest.raises(RunStopped, match=told):
        evaluate(model, tokenizer, every, FIVE, max_completion_length=2)
    trainer = make_trainer(tmp_path, every)
    with pytest.raises(RunStopped, match=told):
        trainer.evaluate_panel(FIVE)
    with pytest.raises(RunStopped, match="evaluation: no episode could be played"):
        trainer.evaluate(toy_dataset(5))
    assert str(success_rate([])) == str(mean_score([])) == "unknown"


def test_a_command_that_could_play_nothing_fails_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        alignopsd("evaluate --model tiny --environment webshop_tiny --max_prompt_length 8 --limit 2".split())
    told = capfd.readouterr()
    assert end.value.code == 1 and "no episode could be played" in told.err and "%" not in told.out


class Drawing(ToyEnvironment):
    """Draws from every random state that training draws from."""

    def reset(self, **columns: Any) -> Any:
        random.random(), np.random.rand(), torch.rand(1)
        return super().reset(**columns)


def test_an_evaluation_has_random_draws_of_its_own(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Drawing, script=False, parts={"eval_dataset": toy_dataset(3)})
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    trainer.evaluate()
    trainer.evaluate_panel(FIVE)
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist())
