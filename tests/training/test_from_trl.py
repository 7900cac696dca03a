"""What docs/from_trl.md answers where no other test shows it, and that the tests it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from fakes.tables import batch_of, config
from fakes.trainers import make_trainer, trained
from peft import LoraConfig

from alignopsd_trl.methods import get_method
from alignopsd_trl.records import read_records
from alignopsd_trl.turns import Thought

ROOT = Path(__file__).parents[2]


def test_a_turn_is_a_row(tmp_path: Path) -> None:
    trainer = trained(tmp_path, save_trajectories=True, skip_zero_advantage=False)
    rows, turns = trainer.seen_rows[0], read_records(tmp_path / "trajectories")
    real = rows["tool_mask"].sum(1)
    assert sorted(real[real > 0].tolist()) == sorted(turns.response_tokens)
    assert len(turns) > len(turns.drop_duplicates(["task", "rollout"]))


def test_an_advantage_does_not_depend_on_how_many_turns_there_were() -> None:
    rewards = [1.0, 0.0, 0.5, 0.0]

    def advantages(lengths: list[int]) -> list[float]:
        names = [["task", f"r{one}", turn] for one, length in enumerate(lengths) for turn in range(length)]
        reward = torch.tensor([rewards[int(rollout[1])] for _, rollout, _ in names])
        mask = torch.ones(len(names), 2, dtype=torch.bool)
        batch = batch_of(names, [Thought("", "")] * len(names), mask, reward, -torch.rand(len(names), 2))
        credit = get_method("grpo")(config()).assign(batch, None, step=0)
        by_rollout = [
            {float(credit.advantages[row, 0]) for row, name in enumerate(names) if name[1] == f"r{one}"}
            for one in range(4)
        ]
        assert all(len(found) == 1 for found in by_rollout)
        return [found.pop() for found in by_rollout]

    expected = torch.tensor(rewards)
    expected = (expected - expected.mean()) / (expected.std() + 1e-6)
    for lengths in ([1, 1, 1, 1], [1, 4, 2, 3], [5, 1, 1, 2]):
        torch.testing.assert_close(torch.tensor(advantages(lengths)), expected)


def test_equal_seeds_make_equal_adapters(tmp_path: Path) -> None:
    def adapter(number: int, seed: int) -> torch.Tensor:
        torch.manual_seed(number)  # what the process drew before
        lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
        trainer = make_trainer(tmp_path / str(number), parts={"peft_config": lora}, seed=seed)
        return next(value for name, value in trainer.model.named_parameters() if "lora_A" in name)

    first, second, other = adapter(0, 7), adapter(1, 7), adapter(2, 8)
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_the_page_names_tests_that_are_there() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", (ROOT / "docs" / "from_trl.md").read_text(encoding="utf-8"))
    assert named
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"
