"""A method that breaks its word is told so by name: what it may ask, what it must give back, how it is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.tables import random_batch, scoring
from fakes.trainers import make_trainer

from alignopsd_trl.methods import Credit, Method, MethodError, checked_credit, get_method, register
from alignopsd_trl.methods import base as registry
from alignopsd_trl.methods.baseline import Baseline, credit_of
from alignopsd_trl.methods.grpo import outcome, token_advantages
from alignopsd_trl.records import read_records
from alignopsd_trl.turns import TurnBatch

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test registers, imports from its folder or puts on the path leaves with it."""
    get_method("grpo")
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)) or name == "my_package":
            del sys.modules[name]


class Ones(Method):
    """One on every optimised token, with whatever a test changes about it."""

    name = "ones"

    def __init__(self, spoil: Any = lambda credit: None) -> None:
        super().__init__(SimpleNamespace())
        self.spoil = spoil

    def assign(self, batch: TurnBatch, teacher: Any, step: int) -> Credit:
        credit = Credit(batch.policy_mask.float())
        changed = self.spoil(credit)
        return credit if changed is None else changed


# What it gives back


def put(**fields: Any) -> Any:
    return lambda credit: vars(credit).update(fields)


def spoiled(change: Any) -> Any:
    """Advantages of the right shape, changed in place."""

    def spoil(credit: Credit) -> None:
        change(credit.advantages)

    return spoil


BAD = {
    "a tensor": (lambda credit: credit.advantages, "must return a Credit, not Tensor"),
    "one value a turn": (lambda credit: put(advantages=credit.advantages.sum(1))(credit), "shape .* one value per"),
    "double": (lambda credit: put(advantages=credit.advantages.double())(credit), "float64; they must be .*float32"),
    "a list": (put(advantages=[1.0]), "advantages must be a tensor, not list"),
    "not a number": (spoiled(lambda a: a[3, 0].fill_(float("nan"))), "finite; 1 of .* the first in row 3"),
    "infinite": (spoiled(lambda a: a[0, 0].fill_(float("inf"))), "finite; 1 of .* the first in row 0"),
    "outside the mask": (spoiled(lambda a: a.fill_(0.5)), r"0 outside batch.policy_mask; row \d+"),
    "with gradient": (spoiled(lambda a: a.requires_grad_()), "advantages must not carry a gradient"),
    "targets of turns": (put(targets={"teacher": torch.zeros(4)}), r"targets\['teacher'\] has the shape \(4,\)"),
    "a metric that is a tensor": (put(metrics={"gap": torch.zeros(())}), r"metrics\['gap'\] must be a number"),
    "a short column": (put(trace={"weight": [1.0]}), r"trace\['weight'\] has 1 values for \d+ turns"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD)
def test_unsound_credit_is_refused_with_the_methods_name(spoil: Any, message: str) -> None:
    batch = random_batch()
    checked_credit(Ones(), batch, scoring(), 0)
    with pytest.raises(MethodError, match=f"method 'ones': .*{message}"):
        checked_credit(Ones(spoil), batch, scoring(), 0)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_targets_must_be_finite_even_outside_the_mask(value: float) -> None:
    batch = random_batch()
    target = torch.where(batch.policy_mask, 0.0, value)  # times a mask of 0 it would still be NaN in the loss
    with pytest.raises(MethodError, match=r"targets\['teacher'\] must be finite"):
        checked_credit(Ones(put(targets={"teacher": target})), batch, scoring(), 0)
    for good in (torch.zeros(*batch.policy_mask.shape), torch.zeros(*batch.policy_mask.shape, 5)):
        assert checked_credit(Ones(put(targets={"teacher": good})), batch, scoring(), 0).targets


# What it asks


class Asking(Ones):
    """Asks once, of the teacher or the batch."""

    def __init__(self, ask: Any) -> None:
        super().__init__()
        self.ask = ask

    def assign(self, batch: TurnBatch, teacher: Any, step: int) -> Credit:
        self.ask(batch, teacher)
        return super().assign(batch, teacher, step)


ROWS = torch.zeros(0, dtype=torch.int64)
ASKED = {
    "score": (lambda batch, teacher: teacher.score(batch, ROWS, ROWS), "teacher.score", "needs_teacher"),
    "vocabulary": (lambda batch, teacher: teacher.vocabulary(batch, 3), "teacher.vocabulary", "needs_teacher"),
    "thoughts": (lambda batch, teacher: teacher.thoughts(batch), "teacher.thoughts", "needs_teacher"),
    "encode": (lambda batch, teacher: teacher.encode(["a"]), "teacher.encode", "needs_encoder"),
    "log-probs": (lambda batch, teacher: batch.student_log_probs, "batch.student_log_probs", "needs_student_log_probs"),
}


@pytest.mark.parametrize(("ask", "use", "line"), ASKED.values(), ids=ASKED)
def test_what_was_not_declared_raises_and_names_the_line(ask: Any, use: str, line: str) -> None:
    for log_probs in (torch.zeros(1), None):  # also where they were computed for another reason
        batch = random_batch()
        batch = replace(batch, student_log_probs=log_probs)
        with pytest.raises(MethodError, match=rf"'ones' uses {use}.*\n    {line} = True") as caught:
            checked_credit(Asking(ask), batch, scoring(), 0)
        assert f"class Asking of {__name__}" in str(caught.value)


def test_what_was_declared_is_answered_and_gathering_is_free() -> None:
    batch = random_batch()
    seen: list[Any] = []
    method = Asking(lambda batch, teacher: seen.append((batch.student_log_probs, teacher.gather(torch.ones(2)))))
    with pytest.raises(MethodError, match="needs_student_log_probs"):
        checked_credit(method, batch, scoring(), 0)
    method.needs_student_log_probs = True
    checked_credit(method, batch, scoring(), 0)
    assert seen[0][0] is batch.student_log_probs and seen[0][1].tolist() == [1, 1]
    batch = replace(batch, student_log_probs=None)
    with pytest.raises(MethodError, match="score the responses"):
        checked_credit(method, batch, scoring(), 0)


def test_the_trainer_asks_every_method_this_way(tmp_path: Path) -> None:
    @register
    class Forgetful(Baseline):
        name = "forgetful"

        def assign(self, batch: TurnBatch, teacher: Any, step: int) -> Credit:
            rows = torch.arange(len(batch))
            gap = teacher.score(batch, rows, rows)
            return Credit(gap)

    with pytest.raises(MethodError, match="'forgetful' uses teacher.score.*\n    needs_teacher = True"):
        make_trainer(tmp_path, method="forgetful").train()


def test_the_recorded_advantage_is_the_methods_own(tmp_path: Path) -> None:
    @register
    class Doubled(Baseline):
        name = "doubled"

        def assign(self, batch: TurnBatch, teacher: Any, step: int) -> Credit:
            found = outcome(batch, self.config)
            return credit_of(batch, found, 2 * found.advantage, {}, {})

    @register
    class Bare(Method):
        name = "bare"

        def assign(self, batch: TurnBatch, teacher: Any, step: int) -> Credit:
            return Credit(token_advantages(torch.full((len(batch),), 3.0), batch.policy_mask))

    for name in ("doubled", "bare"):
        make_trainer(tmp_path / name, method=name, save_trajectories=True).train()
    doubled, bare = (read_records(tmp_path / name / "trajectories") for name in ("doubled", "bare"))
    assert (doubled.credit_advantage != 0).any()
    assert (doubled.credit_advantage - 2 * doubled.credit_outcome_advantage).abs().max() < 1e-5
    assert (bare.credit_advantage == 3).all()


# How it is found


SOURCE = """
from alignopsd_trl.methods import register
from alignopsd_trl.methods.grpo import GRPO
"""


def write(folder: Path, module: str, *names: str) -> None:
    classes = [f"@register\nclass {name.title()}(GRPO):\n    name = {name!r}\n" for name in names]
    file = folder / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SOURCE + "\n".join(classes))


def test_a_module_of_ones_own_is_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "loose_method", "loose")
    write(tmp_path, "my_package.one", "alone")
    write(tmp_path, "my_package.two", "first", "second")
    assert get_method("loose_method").name == "loose"
    assert get_method("my_package.one").name == "alone" and get_method("alone") is get_method("my_package.one")
    assert get_method("my_package.two:second").name == "second"
    with pytest.raises(ValueError, match="registers first, second; choose one, as my_package.two:first"):
        get_method("my_package.two")
    with pytest.raises(ValueError, match="choose one, as"):
        get_method("my_package.two:third")


def test_a_module_without_a_method_and_a_name_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "empty_module")
    with pytest.raises(ValueError, match="'empty_module' registers no method"):
        get_method("empty_module")
    for name in ("", "no such", ".grpo", "my_package_that_is_not.one", "grpo.x"):
        with pytest.raises(ValueError, match="is unknown; .*choose one of agent_opsd, .*my_package.my_method"):
            get_method(name)


def test_an_error_inside_of_the_module_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_method.py").write_text("import a_package_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
        get_method("broken_method")


def test_a_taken_name_is_refused_and_a_class_defined_again_replaces_itself() -> None:
    def define(module: str) -> type[Method]:
        return register(type("GRPO", (Method,), {"name": "grpo", "__module__": module}))

    with pytest.raises(ValueError, match="'grpo' is taken by alignopsd_trl.methods.grpo.GRPO; give mine.GRPO another"):
        define("mine")
    again = [register(type("Cell", (Method,), {"name": "cell", "__module__": "__main__"})) for _ in range(2)]
    assert get_method("cell") is again[1]
    with pytest.raises(ValueError, match="Nameless needs a name"):
        register(type("Nameless", (Method,), {}))


# The page, by someone who has only the page


def blocks(language: str) -> list[str]:
    page = (REPOSITORY / "docs" / "add_a_method.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.full
def test_the_page_works_from_a_folder_outside_the_repository(tmp_path: Path) -> None:
    method, run, read = blocks("python")
    (tmp_path / "tanh_gap.py").write_text(method)
    (tmp_path / "run.py").write_text(run)
    (tmp_path / "read.py").write_text(read)
    (command,) = blocks("bash")
    assert command.startswith("accelerate launch run.py --method tanh_gap") and "--rounds 2" in command
    small = "--rounds 1 --tasks_per_round 4 --num_generations 8 --panel_limit 2 --evaluate_first false --use_cpu"
    command = command.replace("--rounds 2", small).replace("accelerate launch", sys.executable)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    for line in (command, f"{sys.executable} read.py"):
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "credit_outcome_advantage" in done.stdout
    turns = read_records(tmp_path / "outputs" / "tanh_gap" / "trajectories")
    assert len(turns) and not (turns.credit_advantage == turns.credit_outcome_advantage).all()
