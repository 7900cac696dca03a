"""Siblings of a group are several tries at one task: one seed a group, and openings that are compared."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import concatenate_datasets
from fakes.toy import NUMBERS, ToyEnvironment, ToyPrompt, toy_dataset
from fakes.trainers import Watched, make_config, make_trainer

from alignopsd_trl.checks.intended import Intended, check
from alignopsd_trl.checks.tasks import SIBLINGS
from alignopsd_trl.environments import Opening, PlainEnvironment, Step, TextEnvironment, load, open_batch
from alignopsd_trl.environments.adapters import OpenEnvEnvironment, ToolEnvironment, as_environment
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.methods import get_method
from alignopsd_trl.records import read_records
from alignopsd_trl.rollout.episode import SiblingsDiffer, check_openings


class Drawn(PlainEnvironment):
    """Draws its world, and what is behind each door of it, from ``seed``."""

    max_turns = 1
    worlds: dict[str, list[tuple[int, int]]]

    def reset(self, task_id: str, seed: int, **columns: Any) -> Opening:
        draw = random.Random(seed)
        self._number, self._secret = draw.randrange(10), draw.randrange(1000)
        self.worlds[task_id].append((self._number, self._secret))
        return Opening(NUMBERS[self._number], "go")

    def step(self, action: str) -> Step:
        return Step("stay", reward=float(self._secret), done=True)


def fresh(kind: type, **fields: Any) -> Any:
    return type(kind.__name__, (kind,), {"worlds": defaultdict(list), **fields})


def test_an_environment_that_draws_its_world_from_seed_gets_one_world_a_group(tmp_path: Path) -> None:
    kind = fresh(Drawn)
    trainer = make_trainer(tmp_path, kind, max_steps=2)
    kind.worlds.clear()  # of the look at one task before the start
    trainer.train()
    assert len(kind.worlds) == 4
    assert all(len(worlds) == 4 and len(set(worlds)) == 1 for worlds in kind.worlds.values())
    assert len({worlds[0] for worlds in kind.worlds.values()}) > 1, "tasks have worlds of their own"
    assert all(log["outcome/zero_advantage_share"] == 1 for log in trainer.state.log_history if "reward" in log)


def test_a_task_has_one_world_in_an_evaluation_and_in_every_panel(tmp_path: Path) -> None:
    kind = fresh(Drawn)
    trainer = make_trainer(tmp_path, kind, parts={"eval_dataset": toy_dataset(4)}, num_generations_eval=2)
    kind.worlds.clear()
    trainer.evaluate()
    assert len(kind.worlds) == 4 and all(len(worlds) == 2 and len(set(worlds)) == 1 for worlds in kind.worlds.values())
    kind.worlds.clear()
    panel = TaskPanel.of("drawn", "test", list(toy_dataset(3)))
    for number in range(2):
        trainer.evaluate_panel(panel, seed=number)
    assert len(kind.worlds) == 3 and all(len(worlds) == 2 and len(set(worlds)) == 1 for worlds in kind.worlds.values())


class Thrown(Drawn):
    """The throw is each sibling's own."""

    def reset(self, task_id: str, dynamics_seed: int, **columns: Any) -> Opening:
        opening = super().reset(task_id, **columns)
        self.worlds[f"throws of {task_id}"].append((dynamics_seed, 0))
        return opening


class ThrownBelow(Thrown):
    def reset(self, **columns: Any) -> Opening:
        return super().reset(**columns)


@pytest.mark.parametrize("parent", [Thrown, ThrownBelow])
def test_dynamics_get_a_seed_of_the_siblings_own_where_they_ask_for_it_by_name(tmp_path: Path, parent: type) -> None:
    kind = fresh(parent)
    trainer = make_trainer(tmp_path, kind)
    kind.worlds.clear()
    trainer.train()
    throws = [seen for name, seen in kind.worlds.items() if name.startswith("throws of")]
    assert len(throws) == 2 and all(len(set(seen)) == 4 for seen in throws)
    assert all(len(set(seen)) == 1 for name, seen in kind.worlds.items() if not name.startswith("throws of"))


def test_who_does_not_ask_for_the_dynamics_seed_never_sees_it(tmp_path: Path) -> None:
    seen = set()

    class Any_(Drawn):
        def reset(self, **columns: Any) -> Opening:
            seen.update(columns)
            return super().reset(**columns)

    make_trainer(tmp_path, fresh(Any_)).train()
    assert seen == {"task_id", "target", "seed"}


class Forgetful(TextEnvironment):
    """Draws its start from a generator without a seed."""

    prompt = ToyPrompt()

    def reset(self, **columns: Any) -> Opening:
        return Opening(NUMBERS[random.SystemRandom().randrange(10)], "go")

    step, project = ToyEnvironment.step, ToyEnvironment.project


def test_openings_are_compared_unless_the_environment_says_that_they_may_differ(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'seed'.*openings_may_differ = True if they are meant to"):
        make_trainer(tmp_path / "compared", Forgetful)
    make_trainer(tmp_path / "declared", ToyEnvironment).train()


def noticed(seen: list[str]) -> Any:
    """A skill that differs from call to call."""

    def skill(task_text: str, row: dict[str, Any]) -> str:
        seen.append(task_text)
        return f"hint {len(seen)}"

    return skill


@pytest.mark.full
def test_siblings_share_one_skill_and_those_that_open_differently_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    options: dict[str, Any] = {"method": "align_opsd", "max_steps": 2, "save_trajectories": True}

    def kind(*given: Any, **parts: Any) -> Watched:
        return Watched(*given, **parts | {"skill_bank": noticed(calls)})

    make_trainer(tmp_path / "alike", fresh(Drawn), kind=kind, **options).train()  # type: ignore[arg-type]
    frame = read_records(tmp_path / "alike" / "trajectories")
    groups = frame.groupby(["step", "task"])
    assert len(calls) == groups.ngroups > 1 and groups.skill_text.nunique().eq(1).all()
    assert "different skills" not in capsys.readouterr().out

    class Asks(ToyEnvironment):
        def reset(self, **columns: Any) -> Opening:
            opening = super().reset(**columns)
            return replace(opening, task_text=f"from {opening.observation}")

    make_trainer(tmp_path / "unlike", Asks, kind=kind, **options).train()  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert said.count("have different skills, 'hint") == 1 and "as their openings differ" in said


class ForgetfulLater(Forgetful):
    """Draws all starts but the first ones."""

    opened = 0

    def reset(self, **columns: Any) -> Opening:
        type(self).opened += 1
        return super().reset(**columns) if self.opened > 2 * SIBLINGS else Opening(NUMBERS[0], "go")


def test_openings_are_compared_in_every_round(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ForgetfulLater)
    with pytest.raises(SiblingsDiffer, match="'seed'"):
        trainer.train()


class Remembering(Drawn):
    """Opens otherwise after an episode."""

    played = False

    def reset(self, **columns: Any) -> Opening:
        return Opening("left" if self.played else "right", "go")

    def step(self, action: str) -> Step:
        self.played = True
        return super().step(action)


class Seeding(ToyEnvironment):
    """Sets the numbers that the policy is sampled with, in calls that run beside others."""

    concurrent = True

    def reset(self, **columns: Any) -> Opening:
        torch.manual_seed(columns["seed"])
        return super().reset(**columns)


def test_an_environment_that_sets_the_policys_random_numbers_is_refused(tmp_path: Path) -> None:
    with torch.random.fork_rng(), pytest.raises(ValueError, match="calls torch.manual_seed.*Generator of its own"):
        make_trainer(tmp_path, Seeding)


def test_a_trainer_looks_at_its_task_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="after an episode the same task opens otherwise.*alignopsd check"):
        make_trainer(tmp_path / "left over", fresh(Remembering, _secret=0))
    rows = concatenate_datasets([toy_dataset(4), toy_dataset(1)])
    config = make_config(tmp_path, method="grpo")
    with pytest.raises(ValueError, match="1 of 5 task_ids occur twice"):
        check(Intended(config, get_method("grpo")(config), object(), rows, factory=fresh(Drawn)))


def test_a_tool_environment_to_which_nothing_is_added_is_known_by_the_same_object() -> None:
    tools = ToolEnvironment(ToolClass)
    assert as_environment(tools, max_turns=50) is tools


def test_contexts_that_know_no_equality_are_not_compared() -> None:
    check_openings([Opening("a", "t", context=object()), Opening("a", "t", context=object())], ["one"] * 2, "mine")
    with pytest.raises(SiblingsDiffer, match="context"):
        check_openings([Opening("a", "t", context={"room": 1}), Opening("a", "t", context={"room": 2})], ["x"] * 2, "m")


class ToolClass:
    def reset(self, seed: int, dynamics_seed: int, **row: Any) -> str:
        return f"{seed} {dynamics_seed} {sorted(row)}"

    def look(self) -> None:
        """Looks."""


class Client:
    def reset(self, seed: int, dynamics_seed: int, **row: Any) -> Any:
        raise ValueError(f"{seed} {dynamics_seed} {sorted(row)}")


def test_adapters_hand_both_seeds_on() -> None:
    task = {"prompt": "", "seed": 1, "dynamics_seed": 2}
    tools = open_batch(ToolEnvironment(ToolClass), 1)
    assert tools.takes_dynamics_seed and tools.reset([0], [task])[0].task_text == "1 2 ['prompt']"
    assert not open_batch(
        ToolEnvironment(type("Plain", (ToolClass,), {"reset": lambda self, seed: ""})), 1
    ).takes_dynamics_seed
    client = open_batch(OpenEnvEnvironment(Client, reward="sum"), 1)
    assert client.takes_dynamics_seed and "1 2 []" in client.reset([0], [task])[0].message


def test_webshops_random_search_is_dynamics() -> None:
    suite = load("webshop_tiny")
    row, shown = suite.tasks("train")[0], []
    for seed, own in ((1, 5), (2, 5), (1, 6)):
        environment = suite.factory()
        environment.reset(**row, seed=seed, dynamics_seed=own)
        shown.append(environment.step("search[<r>]").observation)
    assert open_batch(suite.factory, 1).takes_dynamics_seed
    assert shown[0] == shown[1] != shown[2]
