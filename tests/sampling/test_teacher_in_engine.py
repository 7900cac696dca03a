"""A teacher with weights of its own where an engine samples: they take the place of the policy's for the privileged
siblings and the thinking of a round. `.ci/vllm` runs the real engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.servers import ScriptedServer, acting, make_served
from fakes.trainers import FakeSampler, make_trainer
from peft import LoraConfig

from alignopsd_trl.commands.measure.training import FidelityCallback
from alignopsd_trl.records import read_records
from alignopsd_trl.sampling.trl_engine import EngineBackend
from alignopsd_trl.scoring.self_check import SelfCheckError

OPTIONS: dict[str, Any] = {"method": "align_opsd", "teacher_model_kind": "base", "teacher_max_completion_length": 10}


class Engine(FakeSampler):
    """Samples from the weights that were pushed last.

    Attributes:
        pushed, asked: a letter for each push and each call: i where the weights are the run's first ones, else o.
    """

    def __init__(self, trainer: Any, deaf: bool):
        super().__init__(trainer, 0.0)
        self.deaf, self.pushed, self.asked = deaf, "", ""
        self.first = self.weights = self.trainers()

    def trainers(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.trainer.model.named_parameters()}

    def letter(self, weights: dict[str, torch.Tensor]) -> str:
        return "i" if all(torch.equal(value, weights[name]) for name, value in self.first.items()) else "o"

    def sync_weights(self) -> None:
        given = self.trainers()
        self.pushed += self.letter(given)
        if not (self.deaf and self.letter(given) == "i"):
            self.weights = given

    def generate(self, **given: Any) -> Any:
        self.asked += self.letter(self.weights)
        before = self.trainers()
        self.trainer.model.load_state_dict(self.weights, strict=False)
        try:
            return super().generate(**given)
        finally:
            self.trainer.model.load_state_dict(before, strict=False)


def engaged(folder: Path, deaf: bool = False, parts: Any = None, **options: Any) -> Any:
    """A trainer that samples with an `Engine`; a deaf one does not take the first weights."""
    trainer: Any = make_trainer(folder, parts=parts, **OPTIONS | options)
    trainer.vllm_generation = Engine(trainer, deaf)
    trainer.backend = trainer.samplers.backend = EngineBackend(trainer, trainer.processes)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    return trainer


@pytest.mark.parametrize(("siblings", "lora"), [(2, False), (0, True)])
def test_a_round_has_one_more_push_and_the_teacher_is_asked_last(tmp_path: Path, siblings: int, lora: bool) -> None:
    parts = {"peft_config": LoraConfig(r=4, target_modules="all-linear")} if lora else None
    trainer = engaged(tmp_path, parts=parts, max_steps=2, privileged_siblings=siblings, learning_rate=0.1)
    trainer.train()
    engine = trainer.vllm_generation
    assert engine.pushed == "iioi", "the policy's before the rollouts, and the teacher's once behind them"
    assert re.fullmatch("i+o+i+", engine.asked)


def test_an_engine_that_does_not_take_its_weights_stops_the_second_round(tmp_path: Path) -> None:
    trainer = engaged(tmp_path, deaf=True, max_steps=3, learning_rate=0.3)
    with pytest.raises(SelfCheckError, match="sampler: .* of a teacher with other weights"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_walks_behind_privileged_siblings_are_the_policys(tmp_path: Path) -> None:
    parts = {"callbacks": [FidelityCallback(every=1, rollouts=1)]}
    trainer = engaged(tmp_path, parts=parts, max_steps=2, privileged_siblings=1, method="rlsd")
    trainer.train()
    assert trainer.vllm_generation.pushed == "iiioio"


def test_a_server_is_asked_for_the_policys_episodes_and_then_for_the_teachers(tmp_path: Path) -> None:
    with ScriptedServer(acting) as server:
        options = OPTIONS | {"max_steps": 2, "privileged_siblings": 2, "save_trajectories": True}
        trainer = make_served(tmp_path, server, self_check=False, **options)
        trainer.train()
    assert trainer.pushes == [0, 0, 1, 1]
    skills = read_records(tmp_path / "trajectories").skill_text.unique()
    texts = [",".join(map(str, trainer.processing_class(text)["input_ids"])) for text in skills]
    asked = "".join(
        "t" if any(text in ",".join(map(str, body["prompt"])) for text in texts) else "p" for body in server.bodies
    )
    assert re.fullmatch("p+t+p+t+", asked)
    assert {body["max_tokens"] for body in server.bodies} == {10, 12}
