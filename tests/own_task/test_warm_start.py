"""The warm start: what it learns from, when it ends, what it says, and what it leaves."""

from __future__ import annotations

import json
import math
import random
import re
import runpy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.own_task.first_policy import first_policy
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start import supervised
from alignopsd_trl.commands.own_task.warm_start import warm_start as made
from alignopsd_trl.commands.own_task.warm_start.agreement import Agreement, HeldOutTurn, turns_of
from alignopsd_trl.commands.own_task.warm_start.supervised import (
    PROMPT_WEIGHT,
    WARM_UP,
    WINDOW,
    SimilarLengths,
    held_out,
    loss_of,
    rate,
)
from alignopsd_trl.commands.own_task.warm_start.tiny import tiny_model, tiny_tokenizer
from alignopsd_trl.commands.own_task.warm_start.warm_start import PLAIN, SKILLED, sample, unread


def test_a_warm_start_is_as_the_recipe_says_unless_flags_differ(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = (maze / "train.py").read_text()
    (maze / "train.py").write_text(recipe.replace('model="tiny"', 'model="tiny", max_steps=2, batch_size=4'))
    main(["demonstrate", "maze", "--episodes", "4"])
    main(["warm_start", "maze", "--tasks", "0", "--layers", "1"])
    assert "2 updates" in capsys.readouterr().out


@pytest.mark.full
def test_a_recipe_says_what_its_first_policy_wins_with_and_without_the_skill(
    maze: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.commands.own_task.warm_start import warm_start

    monkeypatch.setattr(warm_start, "PLAYS", 0.0)
    recipe = (maze / "train.py").read_text()
    (maze / "train.py").write_text(recipe.replace('"environment"', '"eval_temperature": 0.7, "environment"'))
    first_policy("maze", "made", [], config=WarmStartConfig(max_steps=1, layers=1, batch_size=4), episodes=40)
    said = capsys.readouterr().out
    played = said[said.index("training tasks, played by the first policy in made:") :]
    assert "without the skill:\n" in played and "with it:\n" in played
    assert "temperature 0.7," in played  # the recipe's
    assert "look: the policy hardly reads the skill" in played  # it learnt nothing from one update


@pytest.mark.parametrize("recipe", [False, True])
def test_a_policy_that_hardly_agrees_with_its_player_is_not_played(
    maze: Path, recipe: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.commands.own_task.warm_start import warm_start

    monkeypatch.setattr(warm_start, "evaluate", lambda *given, **more: pytest.fail("it was played"))
    if recipe:
        first_policy("maze", "made", [], config=WarmStartConfig(max_steps=1, layers=1, batch_size=4), episodes=8)
    else:
        main(["demonstrate", "maze", "--episodes", "8"])
        main(["warm_start", "maze", "--max_steps", "1", "--layers", "1"])
    (said,) = re.findall("^look: nothing is played.*$", capsys.readouterr().out, re.M)
    assert "0% of those held out at best" in said and "warm_start maze --model and this policy's folder" in said


def test_a_policy_of_few_updates_is_named_whenever_it_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    for updates, busy, words in (
        (3, 20.0, "other programs had most of the machine"),
        (3, 350.0, "fewer than 20"),
        (40, 20.0, ""),
    ):
        effort = made.Effort(updates, 6.0, busy)
        (tmp_path / made.EFFORT_FILE).write_text(json.dumps(vars(effort)))
        assert made.effort_of(tmp_path) == effort
        first_policy("maze", tmp_path, [])
        said = capsys.readouterr().out
        assert words in said and bool(said) is bool(words)
        assert not words or f"hardly trained, 3 updates in 6.0 min and {busy:.0f} CPU seconds" in said
    (tmp_path / made.EFFORT_FILE).write_text(json.dumps(vars(made.Effort(3, 6.0, 20.0))))
    first_policy("maze", tmp_path, [], config=WarmStartConfig(max_steps=3))  # who names the updates knows
    assert not capsys.readouterr().out


def test_an_earlier_policy_goes_on_with_the_settings_of_its_start(maze: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(model: Any, tokenizer: Any, rows: Any, folder: Path, config: Any, *more: Any) -> None:
        configs.append(config)
        raise KeyboardInterrupt

    recipe, configs = (maze / "train.py").read_text(), []
    (maze / "train.py").write_text(recipe.replace('model="tiny"', 'model="tiny", max_steps=1, batch_size=4'))
    _demonstrated(maze, 20)
    main(["warm_start", "maze", "--tasks", "0", "--layers", "1"])
    monkeypatch.setattr(supervised, "train", seen)
    for model in ("policy", "tiny_hops"):
        with pytest.raises(SystemExit):
            main(["warm_start", "maze", "--model", model, "--max_steps", "2"])
    assert [(one.batch_size, one.rate, one.max_steps) for one in configs] == [(4, 2e-3, 2), (16, 2e-5, 2)]


def test_a_first_policy_plays_tasks_of_all_categories() -> None:
    rows = [{"task_id": str(number), "category": "abc"[number % 3]} for number in range(1023)]
    task: Any = SimpleNamespace(name="houses", learnt=lambda: rows)
    assert {row["category"] for row in sample(task).rows} == set("abc")
    assert [row["task_id"] for row in sample(task).rows] == [row["task_id"] for row in sample(task).rows]


WRONG = [(["--roundz", "3"], "--rounds"), (["--distribution_beta", "3"], "lie in"), (["--method", "grop"], "'grpo'")]


@pytest.mark.parametrize(("argv", "word"), WRONG)
def test_a_wrong_command_line_is_refused_before_anything_is_played(
    maze: Path, argv: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=word):
        first_policy("maze", "made", argv)
    assert "demonstrates" not in capsys.readouterr().out and not (maze / "made").exists()


def test_a_recipes_first_policy_learns_from_its_own_environment_in_its_own_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, learnt = runpy.run_path(str(Path(__file__).parents[2] / "recipes" / "hops_smollm.py")), []

    def seen(model: Any, tokenizer: Any, rows: Any, *more: Any) -> None:
        learnt.extend(rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(supervised, "train", seen)
    config, preset, player = replace(recipe["START"], model="tiny"), recipe["PRESET"], recipe["READER"]
    with pytest.raises(KeyboardInterrupt):
        first_policy("searchqa_hops", tmp_path / "p", [], config=config, episodes=4, player=player, preset=preset)
    assert len(learnt) == 4 and all(sum(row["completion_mask"]) > 50 for row in learnt)
    shown = [row["prompt"][0]["content"] for row in learnt]
    assert all(text.startswith("Guidance") == row["skilled"] for text, row in zip(shown, learnt, strict=True))
    assert "" in shown and any(shown)


def test_held_out_turns_are_of_other_tasks() -> None:
    rows = [{"task_id": f"t{number // 3}", "turn": number % 3} for number in range(90)]
    learnt, held = held_out(rows, 128)
    assert not {one["task_id"] for one in learnt} & {one["task_id"] for one in held}
    assert (len(learnt), len(held)) == (81, 9)
    assert held_out(rows[:3], 128) == (rows[:3], rows[:3]) and len(held_out(rows, 5)[1]) == 5


def test_the_learning_rate_rises_and_falls_over_the_budget() -> None:
    rates = [rate(share) for share in (0.0, WARM_UP / 2, WARM_UP, 0.5, 1.0, 1.1)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0, 0.0], abs=0.01)


def test_batches_hold_rows_of_similar_length_and_the_shortest_come_regularly() -> None:
    torch.manual_seed(0)
    order = list(SimilarLengths(list(range(202)), 4, 4 * WINDOW))
    assert sorted(order) == list(range(202))
    batches = [order[place : place + 4] for place in range(0, 200, 4)]
    assert sum(max(one) - min(one) for one in batches) / 50 < 60  # of rows by chance 121
    windows = [sum(batches[place : place + WINDOW], []) for place in range(0, 48, WINDOW)]
    assert sum(min(one) < 40 for one in windows) > 10


def test_each_kind_of_turns_comes_within_a_few_updates() -> None:
    torch.manual_seed(0)
    window = 8 * WINDOW
    kinds = [number % 20 == 0 for number in range(640)]  # the rare ones are the shortest
    order = list(SimilarLengths([100 - 90 * kind + number % 7 for number, kind in enumerate(kinds)], 8, window, kinds))
    assert sorted(order) == list(range(640)) and order[:32] != sorted(order)[:32]
    again = iter(SimilarLengths([100 - 90 * kind + number % 7 for number, kind in enumerate(kinds)], 8, window, kinds))
    assert order == [(row, torch.rand(1))[0] for row in again], "others draw too, as evaluations by the clock"
    assert {sum(kinds[row] for row in order[place : place + window]) for place in range(0, 640, window)} <= {1, 2}


@pytest.mark.parametrize("adapters", [False, True])
def test_the_loss_is_that_of_responses_with_a_share_of_prompts(adapters: bool) -> None:
    tokenizer = tiny_tokenizer(["go left , go right"])
    model: Any = tiny_model(tokenizer, 1, 0).eval()
    if adapters:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    ids = torch.tensor([[5, 6, 7, 8, 9], [7, 5, 6, 0, 0]])
    mask, labels = torch.tensor([[1] * 5, [1] * 3 + [0] * 2]), torch.full((2, 5), -100)
    labels[0, 3:], labels[1, 2] = ids[0, 3:], ids[1, 2]
    shown = ids.masked_fill((labels != -100) | (mask == 0), -100)
    response, prompt = (model(input_ids=ids, attention_mask=mask, labels=one).loss for one in (labels, shown))
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    torch.testing.assert_close(loss_of(model, inputs, False), response)
    torch.testing.assert_close(loss_of(model, inputs, True), response + PROMPT_WEIGHT * prompt)


def test_an_update_in_several_forwards_is_that_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, draw = tiny_tokenizer(["go left , go right"]), random.Random(0)
    told = [{"input_ids": [5, 6, 7] * draw.randint(1, 9) + [8, 9]} for _ in range(17)]
    rows = [one | {"completion_mask": [0] * (len(one["input_ids"]) - 2) + [1, 1]} for one in told]
    made, forwards = [], []
    for forward in (16, 4):
        monkeypatch.setattr(supervised, "FORWARD", forward)
        monkeypatch.setattr(supervised, "bfloat16_pays", lambda width: False)
        config = WarmStartConfig(model="smollm2", batch_size=16, max_steps=2, learning_rate=1e-2)
        model: Any = tiny_model(tokenizer, 1, 0)
        seen = [0]
        model.get_decoder().register_forward_hook(lambda *_, seen=seen: seen.__setitem__(0, seen[0] + 1))
        trainer, _ = supervised.train(model, tokenizer, rows, tmp_path, config)
        made.append(torch.cat([one.detach().flatten() for one in trainer.model.parameters()]))
        forwards.append(seen[0])
    assert forwards[0] < forwards[1]
    start = torch.cat([one.detach().flatten() for one in tiny_model(tokenizer, 1, 0).parameters()])
    assert (made[0] - made[1]).norm() < 0.01 * (made[0] - start).norm()


@pytest.mark.parametrize("row", [{"input_ids": [5] * 900}, {"prompt": [{"role": "user", "content": "go " * 900}]}])
def test_long_rows_are_read_a_few_at_once(row: dict[str, Any]) -> None:
    short = {"input_ids": [5] * 20}
    assert [supervised.rows_at_once([short], batch) for batch in (8, 6, 7)] == [4, 3, 1]
    assert supervised.rows_at_once([short, row], 8) == 2
    assert supervised.rows_at_once([{"input_ids": [5] * 5000}], 8) == 1


def _demonstrated(maze: Path, turns: int) -> None:
    said = {"role": "assistant", "content": "<action>go north</action>"}
    row = {"prompt": [{"role": "user", "content": "Go ."}], "completion": [said]}
    lines = [json.dumps({**row, "task_id": f"t{number}"}) + "\n" for number in range(turns)]
    (maze / "demonstrations.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    ("flags", "updates"), [(["--max_steps", "3"], "[123]"), (["--minutes", "0.02"], r"\d+")], ids=["updates", "minutes"]
)
def test_a_warm_start_says_how_far_it_is(
    maze: Path, flags: list[str], updates: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervised, "SAID_EVERY", 0.0)
    monkeypatch.setattr(made, "FEW", 10**6)
    _demonstrated(maze, 20)
    main(["warm_start", "maze", *flags, "--tasks", "0"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("tiny learns from ")
    hardly = [one for one in said if one.startswith("look: hardly trained, ")]
    assert len(hardly) == (flags[0] == "--minutes"), "who names the updates knows how few they are"
    assert len([one for one in said if re.fullmatch(rf"{updates} updates: loss \d\.\d{{3}}, \d+:\d\d left", one)]) > 1
    (*_, last) = [one for one in said if "held-out loss" in one]
    assert (
        re.search(r"100% of responses are the player's; \d:\d\d gone \(\d+ CPU s\), 0:00 left$", last)
        or "look: " in said[-1]
    )


@pytest.mark.parametrize(("flags", "kept"), [([], 2), (["--max_steps", "9"], 3)])
def test_an_interrupted_warm_start_keeps_the_best_so_far(
    maze: Path,
    flags: list[str],
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = {}

    def on_step_end(self: Any, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        weights[state.global_step] = model.model.norm.weight.detach().clone()
        control.should_evaluate = state.global_step == 2 and self.minutes is not None
        if state.global_step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(supervised.Budget, "on_step_end", on_step_end)
    _demonstrated(maze, 20)
    with pytest.raises(SystemExit) as end:
        main(["warm_start", "maze", *flags])
    told = capsys.readouterr().err
    assert end.value.code == 130
    assert told.strip().splitlines()[-1] == (
        f"alignopsd warm_start: stopped by Ctrl-C; policy holds the best so far, after {kept} updates"
    )
    saved = AutoModelForCausalLM.from_pretrained(maze / "policy").model.norm.weight
    assert torch.equal(saved, weights[kept]) and not torch.equal(weights[2], weights[3])
    assert (maze / "policy" / "tokenizer.json").is_file()


def test_a_warm_start_interrupted_before_its_first_evaluation_leaves_nothing(
    maze: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(model: Any, tokenizer: Any, rows: Any, folder: Path, *more: Any) -> None:
        (folder / "model.safetensors").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(supervised, "train", interrupted)
    before = sorted(maze.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        first_policy("maze", "made/policy", [], episodes=2)
    left = {path.name for path in maze.rglob("*") if path not in before} - {"made"}
    assert not [name for name in left if not name.endswith((".pyc", "__pycache__"))]


def _turn(right: str, response: str, skilled: bool = False) -> Any:
    """A held-out turn whose words are its tokens; ``right`` has a `+` for each that is predicted."""
    words: Any = response.split()
    return HeldOutTurn(words, [one == "+" for one in right], [0.5] * len(right), skilled)


WORDS = SimpleNamespace(decode=" ".join)


def test_agreement_is_told_for_responses_views_and_actions() -> None:
    said = "left </think> <action> left"
    turns = [_turn("++++", said), _turn("-+++", said), _turn("+++-", said), _turn("++++", said, skilled=True)]
    assert Agreement(turns, WORDS).told() == (
        "held-out loss 0.500, 50% of responses are the player's (100% with the skill, 33% without it), of actions "
        "after its thoughts 75%"
    )


def test_turns_are_runs_of_tokens_that_count() -> None:
    ids = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]])
    chosen = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]]).bool()
    right = torch.tensor([1, 0, 1, 1, 1]).bool()
    turns = list(turns_of(ids, chosen, torch.arange(5.0), right, [False, True]))
    assert [(one.response, one.losses) for one in turns] == [([3, 4], [0.0, 1.0]), ([6], [2.0]), ([8, 9], [3.0, 4.0])]
    assert [(all(one.right), one.skilled) for one in turns] == [(False, False), (True, False), (True, True)]


def _toy(turns: int) -> list[dict]:
    """Demonstrations of choosing one of a few doors by chance, and of the door that a skill names."""
    draw, rows = random.Random(0), []
    for number in range(turns):
        skilled = number % 2 == 1
        doors = draw.sample([f"w{one}" for one in range(40)], 6)
        prompt, door = ("the skill: take w1", "w1") if skilled else (f"doors {' '.join(doors)} .", draw.choice(doors))
        said = {"role": "assistant", "content": f"<action>{door}</action>"}
        row = {"prompt": [{"role": "user", "content": prompt}], "completion": [said]}
        rows.append({**row, "task_id": f"t{number}", "turn": 0, "skilled": skilled})
    return rows


@pytest.mark.parametrize("until", mostly_full([None, 0.95]))
def test_a_warm_start_ends_when_the_skill_is_read(
    until: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from alignopsd_trl.commands.own_task.warm_start.warm_start import warm_start

    for name in ("EVERY", "REST"):
        monkeypatch.setattr(supervised, name, 0.0)
    rows = _toy(40)
    made = warm_start(rows, tmp_path / "policy", WarmStartConfig(max_steps=60, until_read=until))
    said = capsys.readouterr().out
    read = re.search(r"^(\d+) updates: the skill is read", said, re.M)
    assert (read is None) == (until is None)
    assert made.updates == (60 if read is None else math.ceil(int(read[1]) / supervised.COOLED))
    shares = [int(one) for one in re.findall(r"(\d+)% with the skill", said)]  # after each update
    means = [sum(pair) / 2 for pair in pairwise(shares)]
    assert read is None or max(means[: int(read[1]) - 2]) < 95 <= means[int(read[1]) - 2]


@pytest.mark.parametrize(
    ("alone", "read", "player", "says"),
    [
        (30, 35, 100, True),  # the skill changes nothing
        (30, 90, 100, False),
        (80, 95, 100, False),  # a good policy has less to gain
        (75, 80, 100, False),  # 20 tasks can't tell
        (30, 30, 40, False),  # nor does it help the player
        (30, math.nan, 100, False),  # nobody knows who won
    ],
)
def test_a_policy_that_does_not_read_the_skill_is_told_so(alone: float, read: float, player: int, says: bool) -> None:
    rows = [{"turn": 0, "skilled": False, "won": number < 35} for number in range(100)]
    rows += [{"turn": 0, "skilled": True, "won": number < player} for number in range(100)]
    results: Any = {
        name: SimpleNamespace(
            success=SimpleNamespace(mean=won),
            outcomes=[SimpleNamespace(won=None if math.isnan(won) else 5 * task < won) for task in range(20)],
        )
        for name, won in ((PLAIN, alone), (SKILLED, read))
    }
    said = unread(results, rows)
    assert bool(said) is says
    if says:
        assert "it won 35% and without 30%" in said and "100% and 35%" in said and "--method grpo" in said
    assert unread({PLAIN: results[PLAIN]}, rows) == ""  # a task without skills
    assert unread(results, rows[:100]) == ""  # no skill was demonstrated
