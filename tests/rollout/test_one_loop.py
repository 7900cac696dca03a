"""An episode is worth the same wherever it is played: by a scripted player, in a panel and in a round of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from fakes.toy import Scripted, ToyPrompt, answer_with, build_model, build_tokenizer
from fakes.trainers import make_config

from alignopsd_trl import AlignOPSDTrainer
from alignopsd_trl.commands.own_task.playing import Answer, play
from alignopsd_trl.environments import Ending, Opening, PlainEnvironment, Step, open_batch
from alignopsd_trl.results.play import play_panel
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.training.rollouts import Rollouts
from alignopsd_trl.turns import StopReason, Trajectory

KINDS = ("paid at the end", "milestones", "lost", "invalid", "late failure", "failure at the end", "over at once")
ROWS = [{"task_id": name, "prompt": "go"} for name in KINDS]
SAID = "<action>left</action>"


class Course(PlainEnvironment):
    """Three turns of a kind that its row names."""

    prompt = ToyPrompt()
    max_turns = 3

    def reset(self, task_id: str, **columns: Any) -> Opening:
        self._kind, self._turn = task_id, 0
        return Opening("zero", "go")

    def step(self, action: str) -> Step:
        self._turn += 1
        turn = self._turn
        if (self._kind, turn) == ("late failure", 3):
            raise KeyError("door")
        return Step(
            ("one", "two", "three")[turn - 1],
            reward=0.5 * turn,
            done=self._kind == "over at once",
            won=self._kind == "milestones" and turn == 3,
            score=turn / 10,
            valid=(self._kind, turn) != ("invalid", 2),
            lost=self._kind == "lost" and turn >= 2,
            milestone=f"door {turn}" if self._kind == "milestones" else None,
        )

    def finish(self) -> Ending | None:
        if self._kind == "failure at the end":
            raise KeyError("end")
        paid = Ending(reward=2.0, won=True, score=0.75, turn_rewards={0: 0.25, 1: -1.0})
        return paid if self._kind == "paid at the end" else None


def worth(played: Trajectory) -> tuple[Any, ...]:
    turns = [(one.action, one.action_valid, one.milestone, one.observation, one.reward) for one in played.turns]
    reward = None if played.failed else played.reward  # a round pays nothing for what has failed
    outcome = played.stop, reward, played.score, played.won, played.lost, played.message
    return *outcome, played.turn_rewards, turns


def checked() -> list[Trajectory]:
    return [one.trajectory for one in play(Course, ROWS, lambda asked: [Answer(SAID) for _ in asked])]


def in_a_panel() -> list[Trajectory]:
    tokenizer = build_tokenizer()
    with_end = [*tokenizer(SAID, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    batch = open_batch(Course, len(ROWS))
    sampler = Scripted(lambda prompts: ([list(with_end) for _ in prompts], None))
    player = Player.of(batch, sampler, tokenizer, [tokenizer.eos_token_id], PlayOptions())
    try:
        return play_panel(player, build_model(tokenizer), ROWS, len(ROWS))
    finally:
        batch.close()


def in_a_round(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Trajectory]:
    tokenizer, policy, seen = build_tokenizer(), folder / "policy", list[Trajectory]()
    build_model(tokenizer).save_pretrained(policy)
    size = {"per_device_train_batch_size": 2 * len(ROWS), "num_generations": 2, "max_failed_share": 0.9}
    trainer = AlignOPSDTrainer(
        str(policy),
        make_config(folder, **size),
        environment_factory=Course,
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer,
    )
    with_end = [*tokenizer(SAID, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    answer_with(trainer, lambda prompts: ([list(with_end) for _ in prompts], None))
    groups = Rollouts.play_groups
    monkeypatch.setattr(Rollouts, "play_groups", lambda *asked: seen.extend(groups(*asked)) or seen)
    trainer.train()
    return sorted(seen[::2], key=lambda one: KINDS.index(one.task))


def test_an_episode_is_worth_the_same_in_a_check_in_a_panel_and_in_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_script, by_panel, by_round = checked(), in_a_panel(), in_a_round(tmp_path, monkeypatch)
    assert list(map(worth, by_script)) == list(map(worth, by_panel)) == list(map(worth, by_round))
    paid, stones, lost, invalid, late, at_end, once = by_script
    assert (paid.reward, paid.score, paid.won, paid.turn_rewards) == (4.25, 0.75, True, [0.75, 0.0, 3.5])
    assert [turn.milestone for turn in stones.turns] == ["door 1", "door 2", "door 3"] and stones.won
    assert (lost.lost, lost.stop, lost.won) == (2, StopReason.TURN_LIMIT, False)
    assert [turn.action_valid for turn in invalid.turns] == [True, False, True]
    assert late.failed and len(late.turns) == 3 and "KeyError: 'door'" in late.message
    assert at_end.failed and "KeyError: 'end'" in at_end.message
    assert (once.stop, once.reward, len(once.turns)) == (StopReason.DONE, 0.5, 1)
