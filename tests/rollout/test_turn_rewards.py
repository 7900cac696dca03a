"""One meaning of rewards, wherever they come from: they fall on turns and sum to the episode's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from fakes.episodes import episode
from fakes.tables import small_world
from fakes.toy import answer_with, build_model, build_tokenizer
from fakes.trainers import make_config

from alignopsd_trl import AlignOPSDTrainer, read_records
from alignopsd_trl.commands.measure.kept import decoded, encoded
from alignopsd_trl.environments import Ending, Opening, PlainEnvironment, Step
from alignopsd_trl.environments.adapters import OpenEnvEnvironment, ToolEnvironment
from alignopsd_trl.methods import get_method
from alignopsd_trl.methods.base import method_names
from alignopsd_trl.turns import StopReason, Trajectory, TurnBatch

ROWS = Dataset.from_list([{"task_id": name, "prompt": "go"} for name in ("one", "two")])


class Steps(PlainEnvironment):
    """Three turns, worth .25, .5 and 0."""

    max_turns = 3
    ending: Ending | None = None

    def reset(self, **columns: Any) -> Opening:
        self._turn = 0
        return Opening("zero", "go")

    def step(self, action: str) -> Step:
        self._turn += 1
        return Step(("one", "two", "three")[self._turn - 1], reward=(0.25, 0.5, 0.0)[self._turn - 1])

    def finish(self) -> Ending | None:
        return self.ending


class Ended(Steps):
    ending = Ending(reward=2.0)


class Tools:
    """Keeps a reward that nobody asks for."""

    def reset(self, **row: Any) -> None:
        self.reward = 0.75

    def left(self) -> None:
        """Goes left."""


class Rewarded(Tools):
    def get_reward(self) -> float:
        return 2.0


class Client:
    def reset(self, **row: Any) -> Any:
        self.turn = 0
        return SimpleNamespace(observation="zero", reward=None, done=False)

    def step(self, action: Any) -> Any:
        self.turn += 1
        return SimpleNamespace(observation="one", reward=(0.25, 0.5, 1.25)[self.turn - 1], done=self.turn == 3)


def six(trajectory: list[Trajectory], **columns: Any) -> list[float]:
    return [6.0] * len(trajectory)


def kept(environments: list[Any], **columns: Any) -> list[float]:
    return [environment.reward for environment in environments]


def openenv(reward: str) -> OpenEnvEnvironment:
    return OpenEnvEnvironment(Client, act=lambda text: text, reward=reward)


TABLE = {
    "steps": (Steps, {}, [0.25, 0.5, 0.0]),
    "ending": (Ended, {}, [0.25, 0.5, 2.0]),
    "steps and a function": (Steps, {"reward_funcs": six}, [0.25, 0.5, 6.0]),
    "weights": (Ended, {"reward_funcs": six, "reward_weights": [2.0, 0.5]}, [0.5, 1.0, 7.0]),
    "get_reward": (ToolEnvironment(Rewarded, max_turns=3), {}, [0.0, 0.0, 2.0]),
    "a function alone": (ToolEnvironment(Tools, max_turns=3), {"reward_funcs": six}, [0.0, 0.0, 6.0]),
    "an attribute that a function reads": (
        ToolEnvironment(Tools, max_turns=3),
        {"reward_funcs": kept},
        [0.0, 0.0, 0.75],
    ),
    "openenv, sum": (openenv("sum"), {}, [0.25, 0.5, 1.25]),
    "openenv, last": (openenv("last"), {}, [0.0, 0.0, 1.25]),
}


def trained(folder: Path, factory: Any, reward_funcs: Any = None, **options: Any) -> tuple[TurnBatch, Any]:
    """What a method was asked with in one round, and the records of it."""
    tokenizer, policy = build_tokenizer(), folder / "policy"
    build_model(tokenizer, positions=1024).save_pretrained(policy)
    options = {"save_trajectories": True, "max_prompt_length": 512, **options}
    trainer = AlignOPSDTrainer(
        str(policy),
        make_config(folder, **options),
        environment_factory=factory,
        train_dataset=ROWS,
        reward_funcs=reward_funcs,
        processing_class=tokenizer,
    )
    answer = tokenizer("<action>left()</action>", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    answer_with(trainer, lambda prompts: ([list(answer) for _ in prompts], None))
    seen: list[TurnBatch] = []
    assign = trainer.method.assign
    trainer.method.assign = lambda batch, *also: seen.append(batch) or assign(batch, *also)
    trainer.train()
    return seen[0], read_records(folder / "trajectories")


@pytest.mark.parametrize("name", TABLE)
def test_rewards_fall_on_turns_and_sum_to_the_episodes(tmp_path: Path, name: str) -> None:
    factory, options, expected = TABLE[name]
    batch, records = trained(tmp_path, factory, **options)
    assert batch.turn_reward.reshape(-1, 3).tolist() == [expected] * 8
    assert batch.reward.tolist() == [sum(expected)] * 24
    assert records.turn_reward.tolist() == expected * 8
    assert records.groupby(["task", "rollout"]).turn_reward.sum().tolist() == [sum(expected)] * 8
    assert set(records.reward) == {sum(expected)}


def test_a_turn_knows_what_it_was_chosen_on(tmp_path: Path) -> None:
    batch, _ = trained(tmp_path, Steps)
    assert [turn.chosen_on for turn in batch.turns[:3]] == ["zero", "one", "two"]
    assert [turn.observation for turn in batch.turns[:3]] == ["one", "two", "three"]


class OnTheWay(Steps):
    def step(self, action: str) -> Step:
        return replace(super().step(action), milestone="half" if self._turn == 2 else None)


def test_a_milestone_travels_with_its_turn_and_only_its_method_minds(tmp_path: Path) -> None:
    batch, records = trained(tmp_path / "beacon", OnTheWay, method="beacon")
    assert [turn.milestone for turn in batch.turns] == [None, "half", None] * 8
    assert records.milestone.fillna("").tolist() == ["", "half", ""] * 8
    assert records.credit_segment_reward.tolist() == [9.5, 10.0, 0.0] * 8
    again = decoded(json.loads(json.dumps(encoded(batch.turns))))
    assert [turn.milestone for turn in again] == [turn.milestone for turn in batch.turns]
    _, marked = trained(tmp_path / "marked", OnTheWay, method="graphgpo")
    _, plain = trained(tmp_path / "plain", Steps, method="graphgpo")
    assert plain.milestone.isna().all()
    assert marked.drop(columns=["run", "milestone"]).equals(plain.drop(columns=["run", "milestone"]))


def test_a_failed_episodes_rewards_are_the_environments() -> None:
    failed = episode("r0", 0.0, ("left", "x"), ("left", "y"))
    failed.stop, failed.turns[0].reward, failed.turns[1].reward = StopReason.ENVIRONMENT_ERROR, 1.0, 2.0
    assert failed.turn_rewards == [1.0, 2.0] and len(TurnBatch.of([failed], 0)) == 0


PAGE = Path(__file__).parents[2] / "docs" / "add_a_method.md"
UNTRAINED = ("vanilla", "skill_prompt")
MEASURED = "monte_carlo"  # takes advantages that are measured from outcomes


def test_the_page_says_whose_credit_moves_with_where_rewards_fall(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Where rewards fall\n")[2].partition("\n## ")[0]
    table = section.partition("| method |")[2].partition("| all others")[0]
    told = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    moved = set()
    for name in set(method_names()) - {*UNTRAINED, MEASURED}:
        if not get_method(name).__module__.startswith("alignopsd_trl."):
            continue
        early, late = (_credit(name, tmp_path, turn) for turn in (1, 4))
        moved |= set() if torch.equal(early, late) else {name}
    assert moved == told and "align_opsd" not in told


def _credit(name: str, folder: Path, turn: int) -> torch.Tensor:
    """Credit where each episode's reward falls on one of its six turns; page n follows turn n."""
    batch, teacher = small_world()
    turns = [replace(one, observation=f"page {one.number}") for one in batch.turns]
    batch = replace(batch, turns=turns, turn_reward=(batch.reward * (batch.turn == turn)).double())
    return get_method(name)(make_config(folder, method=name)).assign(batch, teacher, 0).advantages
