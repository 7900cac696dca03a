"""The trainer over TRL's seams: losses by hand, sub-chunks, dummy rows, resume, options."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fakes.banks import sentences_of
from fakes.sweeps import mostly_full
from fakes.toy import ToyEnvironment, build_model, toy_dataset
from fakes.trainers import (
    difference,
    hand_loss,
    kept,
    losses,
    make_config,
    make_trainer,
    trained,
    variety,
    with_sampler,
)
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments import EnvironmentsDown, Opening, Step, TaskPanel
from alignopsd_trl.environments.batch import ThreadedBatch
from alignopsd_trl.records import read_records
from alignopsd_trl.results.card import facts_of
from alignopsd_trl.runs.health import RunStopped
from alignopsd_trl.runs.state import whole_checkpoints
from alignopsd_trl.skills import SkillBank
from alignopsd_trl.trainer import AlignOPSDTrainer
from alignopsd_trl.training.rewards import reward_figures
from alignopsd_trl.training.rollouts import ToPlay


@pytest.mark.parametrize("method", ["grpo", "align_opsd"])
def test_loss_and_gradient_are_the_hand_computed_token_mean(tmp_path: Path, method: str) -> None:
    trainer = trained(tmp_path, method=method, learning_rate=0.0, tokens_per_forward=300)
    expected, gradient = hand_loss(build_model(trainer.processing_class), trainer.seen_rows)
    assert losses(trainer)[0] == pytest.approx(expected, abs=1e-6)
    assert difference(trainer.seen_gradients[0], gradient) < 1e-5
    assert max(float(value.abs().max()) for value in gradient.values()) > 1e-3


def test_two_optimizer_steps_per_rollout_average_to_the_hand_value(tmp_path: Path) -> None:
    trainer = trained(
        tmp_path, learning_rate=0.0, max_steps=2, per_device_train_batch_size=2, steps_per_generation=4,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    assert len(trainer.seen_rows) == 1
    expected, _ = hand_loss(build_model(trainer.processing_class), trainer.seen_rows)
    assert sum(losses(trainer)) / 2 == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("checkpointing", mostly_full([False, True]))
@pytest.mark.full
def test_size_of_sub_chunks_changes_nothing(tmp_path: Path, checkpointing: bool) -> None:
    runs = []
    for size in (1, 300, 100_000):
        trainer = trained(
            tmp_path / str(size), method="align_opsd", tokens_per_forward=size, max_steps=2, max_grad_norm=1.0,
            gradient_checkpointing=checkpointing, beta=0.05, entropy_coef=0.01, optim="sgd", auxiliary_loss="alignment",
        )  # fmt: skip
        norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
        runs.append((losses(trainer), norms, {k: v.detach().clone() for k, v in trainer.model.named_parameters()}))
    for other in runs[1:]:
        assert other[0] == pytest.approx(runs[0][0], abs=1e-6)
        assert other[1] == pytest.approx(runs[0][1], rel=1e-3)
        assert difference(other[2], runs[0][2]) < 1e-4


def test_dummy_rows_add_nothing(tmp_path: Path) -> None:
    runs = []
    for extra in (0, 7):
        trainer = make_trainer(tmp_path / str(extra), method="align_opsd")
        real = trainer.processes.agree
        trainer.processes.agree = lambda number, real=real, extra=extra: real(number) + (extra if number else 0)
        trainer.train()
        runs.append(trainer)
    assert len(runs[1].seen_rows[0]["advantages"]) == len(runs[0].seen_rows[0]["advantages"]) + 7
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-7)
    assert difference(runs[1].seen_gradients[0], runs[0].seen_gradients[0]) < 1e-6


def test_neutral_weights_reproduce_grpo_and_the_base_class_loss(tmp_path: Path) -> None:
    grpo = make_trainer(tmp_path / "grpo", learning_rate=0.0)
    neutral = make_trainer(tmp_path / "neutral", method="align_opsd", credit_mixing=0.0, learning_rate=0.0)
    for trainer in (grpo, neutral):
        trainer.train()
    assert torch.allclose(neutral.seen_rows[0]["advantages"], grpo.seen_rows[0]["advantages"], atol=1e-6)
    assert difference(neutral.seen_gradients[0], grpo.seen_gradients[0]) < 1e-6

    rows = dict(grpo.seen_rows[0])
    rows["advantages"] = rows["advantages"].sum(1) / rows["tool_mask"].sum(1).clamp(min=1)
    base = GRPOTrainer.compute_loss(grpo, grpo.model, rows)
    assert losses(grpo)[0] == pytest.approx(base.item(), abs=1e-6)


def test_privileged_view_differs_from_the_student_only_by_the_skill(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, method="align_opsd", save_trajectories=True)
    played = kept(trainer.rollouts, "play_groups", parts=True)
    trainer.train()
    sentences = list(sentences_of(SkillBank.load("webshop")))
    decode = trainer.processing_class.decode
    for trajectory in played:
        assert trajectory.skill_text.startswith("Guidance for this kind of task:")
        block = decode(trainer.processing_class(trajectory.skill_text)["input_ids"])
        for turn in trajectory.turns:
            assert not any(sentence in turn.prompt_text for sentence in sentences)
            assert decode(turn.privileged_ids).replace(block + "\n", "") == decode(turn.prompt_ids)
    frame = read_records(tmp_path / "trajectories")
    assert (frame.skill_text.str.len() > 0).all() and not frame.prompt.str.contains("Guidance").any()
    items = [len(trajectory.skill_ids) for trajectory in played]
    assert trainer.state.log_history[0]["episodes/skill_items"] == sum(items) / len(items) > 0, "what the budget left"


def _weights(trainer: AlignOPSDTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


@pytest.mark.parametrize("script", mostly_full([False, True]))
def test_resume_repeats_the_remaining_steps(tmp_path: Path, script: bool) -> None:
    options = {"method": "align_opsd", "save_strategy": "steps", "save_steps": 2, "max_steps": 4, "script": script}
    whole = trained(tmp_path, **options)
    resumed = make_trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert losses(resumed)[-2:] == losses(whole)[-2:]
    assert difference(_weights(resumed), _weights(whole)) == 0.0


@pytest.mark.full
def test_resume_passes_over_a_checkpoint_that_was_cut_short(tmp_path: Path) -> None:
    trainer = trained(tmp_path, save_strategy="steps", save_steps=1, max_steps=2)
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text('{"global_st')
    assert whole_checkpoints(tmp_path)[-1].name == "checkpoint-1"
    again = make_trainer(tmp_path, save_strategy="steps", save_steps=1, max_steps=2)
    again.train(resume_from_checkpoint="True")
    assert again.state.global_step == 2 and losses(again)[-1] == losses(trainer)[-1]
    with pytest.raises(ValueError, match="trainer_state.json"):
        (tmp_path / "checkpoint-2" / "trainer_state.json").unlink()
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_completions_table_has_one_line_per_trajectory(tmp_path: Path) -> None:
    trainer = trained(tmp_path, log_completions=True, num_completions_to_print=1)
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert len(table) == 8 < (trainer.seen_rows[0]["tool_mask"].sum(1) > 0).sum()
    assert table.advantage.abs().sum() > 0


def test_lora_with_reference_trains_the_adapter_only(tmp_path: Path) -> None:
    parts = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}
    trainer = make_trainer(tmp_path, method="align_opsd", beta=0.1, max_steps=2, parts=parts)
    before = _weights(trainer)
    trainer.train()
    after = _weights(trainer)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed and all("lora" in name for name in changed)
    assert "ref_per_token_logps" in trainer.seen_rows[0]
    own, reference = (trainer.scorer.own(_batch(trainer), view) for view in (False, True))
    assert not torch.allclose(own, reference)
    assert facts_of(trainer, None, None)["adapter"]  # the model card says so


def _batch(trainer: AlignOPSDTrainer):
    from alignopsd_trl.turns import TurnBatch

    rows = [row for row in toy_dataset(2) for _ in range(4)]
    played = trainer.rollouts.play_groups(ToPlay(rows, 0, 1, trainer.backend.sampler(1.0, 12), trainer.method))
    return TurnBatch.of(played, trainer.processing_class.pad_token_id)


def test_kl_to_the_reference_is_zero_at_first_and_grows(tmp_path: Path) -> None:
    trainer = trained(tmp_path, beta=0.1, max_steps=3, learning_rate=3e-2)
    kl = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and kl[-1] > 1e-4


def test_several_iterations_use_the_snapshots_log_probs(tmp_path: Path) -> None:
    trainer = trained(tmp_path, method="align_opsd", num_iterations=2, max_steps=2, learning_rate=3e-2)
    assert len(trainer.seen_rows) == 1 and "old_per_token_logps" in trainer.seen_rows[0]
    first, second = losses(trainer)
    assert first != second


def test_reward_functions_add_to_the_environments_reward(tmp_path: Path) -> None:
    def short(trajectory, target, **columns):
        assert len(target) == len(trajectory)
        return [-0.01 * len(one.turns) for one in trajectory]

    trainer = trained(tmp_path, parts={"reward_funcs": short}, reward_weights=[2.0])
    log = trainer.state.log_history[0]
    assert log["rewards/short/mean"] == pytest.approx(-0.01 * log["episodes/turns"])
    assert log["reward"] == pytest.approx(log["rewards/environment_reward/mean"] + 2 * log["rewards/short/mean"])


class Faulty(ToyEnvironment):
    """Raises in the episodes of one sibling, hangs in those of another."""

    def reset(self, dynamics_seed: int, **row):
        self._kind = dynamics_seed % 3
        return super().reset(dynamics_seed=dynamics_seed, **row)

    def step(self, action: str) -> Step:
        if self._kind == 0:
            raise RuntimeError("the shop burnt down")
        if self._kind == 1:
            time.sleep(1.5)
        return super().step(action)


@pytest.mark.full
def test_a_faulty_environment_costs_its_own_trajectories_only(tmp_path: Path) -> None:
    trainer = trained(tmp_path, factory=Faulty, method="align_opsd", environment_time_limit=0.5, save_trajectories=True)
    frame = read_records(tmp_path / "trajectories")
    failed = frame[frame.stop == "environment error"]
    assert failed.message.str.contains("the shop burnt down").any() and failed.message.str.contains("0.5 s").any()
    assert failed.credit_weight.isna().all() and frame[frame.stop != "environment error"].credit_weight.notna().all()
    log = trainer.state.log_history[0]
    assert log["stop/environment_error"] == failed.groupby(["task", "rollout"]).ngroups / 8


class Closing(ToyEnvironment):
    opened = closed = 0

    def __init__(self) -> None:
        Closing.opened += 1

    def close(self) -> None:
        Closing.closed += 1


def test_environments_are_closed_with_the_training_and_opened_again_when_needed(tmp_path: Path) -> None:
    trainer = trained(tmp_path, factory=Closing)
    assert Closing.opened == Closing.closed > 0
    trainer.evaluate_panel(TaskPanel.of("toy", "all", list(toy_dataset(2))))
    assert Closing.opened > Closing.closed
    trainer.close()
    assert Closing.opened == Closing.closed


def test_threads_of_environments_end_before_close_returns(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    trainer = make_trainer(tmp_path)
    trainer.evaluate_panel(TaskPanel.of("toy", "all", list(toy_dataset(2))))

    def started() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in before]

    assert "environment" in started()
    trainer.close()
    assert "environment" not in started()


class Server:
    up = True


class Served(ToyEnvironment):
    """Shares a server with all others."""

    def step(self, action: str) -> Step:
        if not Server.up:
            raise EnvironmentsDown("the server stays away")
        return super().step(action)


def test_a_lost_server_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    class TakeDown(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            Server.up = state.global_step < 2

    Server.up = True
    trainer = make_trainer(tmp_path, factory=Served, max_steps=4, parts={"callbacks": [TakeDown()]})
    with pytest.raises(EnvironmentsDown, match="stays away"):
        trainer.train()
    assert whole_checkpoints(tmp_path)[-1].name == "checkpoint-2"


def test_an_action_that_was_not_on_offer_may_be_invalid(tmp_path: Path) -> None:
    class Strict(ToyEnvironment):
        def step(self, action: str) -> Step:
            return replace(super().step(action), valid=action != "stay")

    trained(tmp_path, factory=Strict, save_trajectories=True)
    frame = read_records(tmp_path / "trajectories")
    assert (frame.action == "stay").any() and not frame[frame.action == "stay"].action_valid.any()
    assert frame[frame.action == "left"].action_valid.all()


class Counting(ToyEnvironment):
    def reset(self, **task) -> Opening:
        self.count = 0
        return super().reset(**task)

    def step(self, action: str) -> Step:
        self.count += 1
        numbers = {"steps": self.count, "late": self.count > 1}
        return replace(super().step(action), metrics=numbers, info={"page": "p" * 1000, "kind": "toy"})


class CountingBatch(ThreadedBatch):
    """Counts its steps over all episodes since it was made."""

    steps = 0

    def step(self, slots, actions):
        self.steps += len(slots)
        return super().step(slots, actions)

    def metrics(self) -> dict[str, float]:
        return {"steps": float(self.steps)}


class CountingFactory:
    def __call__(self) -> Counting:
        return Counting()

    def batch(self, size: int, time_limit: float) -> CountingBatch:
        return CountingBatch(Counting, size, time_limit)


def test_what_an_environment_counts_is_logged_by_round_and_saved_by_turn(tmp_path: Path) -> None:
    trainer = trained(tmp_path, factory=CountingFactory(), max_steps=2, save_trajectories=True)
    frame = read_records(tmp_path / "trajectories")
    for step, log in enumerate(trainer.state.log_history[:2]):
        played = frame[frame.step == step]
        last = played.groupby(["task", "rollout"]).tail(1)
        assert log["environment/steps"] == len(played), "the round's own, not the run's"
        assert log["last_step/steps"] == pytest.approx(len(played) / len(last))
        assert log["last_step/late"] == pytest.approx((last.turn > 0).mean())
        assert "last_step/kind" not in log and "last_step/page" not in log
    assert json.loads(frame["info"][0]) == {"steps": 1, "late": False, "kind": "toy"}


@pytest.mark.full
def test_history_is_dropped_before_anything_else_and_then_the_turn_refused(tmp_path: Path) -> None:
    longest = make_trainer(tmp_path / "long", method="align_opsd", max_prompt_length=512)
    rows = [row for row in toy_dataset(2) for _ in range(4)]
    played = longest.rollouts.play_groups(ToPlay(rows, 0, 1, longest.backend.sampler(1.0, 12), longest.method))
    turns = [turn for trajectory in played for turn in trajectory.turns]
    assert not any(turn.history_shortened for turn in turns)
    limit = max(len(turn.privileged_ids) for turn in turns if turn.number == 0)
    assert any(len(turn.privileged_ids) > limit for turn in turns)

    trained(tmp_path / "short", method="align_opsd", save_trajectories=True, max_prompt_length=limit)
    cut = read_records(tmp_path / "short" / "trajectories")
    assert cut.history_shortened.any() and (cut.prompt_tokens <= limit).all()
    assert cut.prompt.str.contains("you seek").all() and cut.prompt.str.contains("you are at").all()

    nothing = make_trainer(tmp_path / "nothing", method="grpo", max_prompt_length=4, save_trajectories=True)
    with pytest.raises(
        RunStopped,
        match=r"'toy/\d+': its first prompt has \d+ tokens, more than max_prompt_length=4; raise that, or shorten what",
    ):
        nothing.train()


def test_evaluation_in_the_trainer_plays_and_leaves_training_as_it_was(tmp_path: Path) -> None:
    panel = TaskPanel.of("toy", "test", list(toy_dataset(10)))
    runs = []
    for evaluates in (False, True):
        trainer = make_trainer(tmp_path / str(evaluates), script=False, max_steps=2)
        if evaluates:
            first, second = (trainer.evaluate_panel(panel, seed=3) for _ in range(2))
            assert first == second and first.episodes == 10 and first.checksum == panel.checksum
        trainer.train()
        runs.append(losses(trainer))
    assert runs[0] == runs[1]


class Rising(ToyEnvironment):
    """Wins the tasks below a number that a test sets; a third class does not say who won."""

    wins, says = 0, True

    def step(self, action: str) -> Step:
        won = self._target < Rising.wins
        return Step("zero", float(won), done=True, won=won if self.says else None, score=float(won))


class Silent(Rising):
    says = False


class Waves(TrainerCallback):
    """Sets what is won after each update."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        Rising.wins = (0, 1, 3, 2, 9)[state.global_step]


@pytest.mark.parametrize("factory", [pytest.param(Rising, marks=pytest.mark.full), Silent])
def test_the_best_checkpoint_is_kept_by_success_and_early_stopping_goes_by_it(tmp_path: Path, factory: type) -> None:
    parts = {"eval_dataset": toy_dataset(10), "callbacks": [Waves(), EarlyStoppingCallback(1)], "reward_funcs": variety}
    trainer = trained(
        tmp_path,
        factory,
        parts=parts,
        **{"max_steps": 4, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1},
        load_best_model_at_end=True,
    )
    assert [one["eval_success_or_score"] for one in trainer.state.log_history if "eval_runtime" in one] == [
        0.1,
        0.3,
        0.2,
    ]
    assert trainer.state.best_metric == 0.3 and trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    best, last = (load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in (2, 3))
    own = trainer.model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in best.items())
    assert any(not torch.equal(own[name], value) for name, value in last.items())


def test_a_scheduler_that_follows_evaluations_wants_more_and_several_sets_need_a_name(tmp_path: Path) -> None:
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 3}}
    config = make_config(tmp_path, eval_strategy="steps", **plateau)
    assert config.lr_scheduler_kwargs == {"mode": "max", "patience": 3} and config.greater_is_better
    sets = {"easy": toy_dataset(2), "hard": toy_dataset(2)}
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best"}
    with pytest.raises(ValueError, match="easy, hard.*metric_for_best_model='eval_easy_success_or_score'"):
        make_trainer(tmp_path, parts={"eval_dataset": sets}, **options)


def test_logged_rewards_are_over_the_episodes_that_count(tmp_path: Path) -> None:
    """Two groups by hand: the first of the environment's 1, 0 and two failed ones, the second of one episode."""
    nan = float("nan")
    table = torch.tensor([[1.0, nan], [0.0, 4.0], [nan, nan], [nan, nan], [1.0, nan], *[[nan, nan]] * 3])
    found = reward_figures(table, (table * torch.tensor([1.0, 0.5])).nansum(1), ["own", "extra"], 4)
    assert found["reward"] == pytest.approx(4 / 3) and found["reward_std"] == pytest.approx((1 / 3) ** 0.5)
    assert found["rewards/own/mean"] == pytest.approx(2 / 3) and found["rewards/extra/mean"] == 4.0
    assert found["frac_reward_zero_std"] == 0.0, "no group of the two is alike: one differs, one is alone"

    class Burning(Faulty):
        def step(self, action: str) -> Step:
            if self._kind == 0:
                raise RuntimeError("the shop burnt down")
            return Step("zero", -1.0, done=True, won=False)

    trainer = trained(tmp_path, Burning)
    log = trainer.state.log_history[0]
    assert 0 < log["stop/environment_error"] < 1
    assert log["reward"] == log["rewards/environment_reward/mean"] == -1.0
    assert log["reward_std"] == log["rewards/environment_reward/std"] == 0.0 and log["frac_reward_zero_std"] == 1.0


@pytest.mark.parametrize("mode", mostly_full(["token_truncate", "sequence_mask"]))
def test_sampler_log_probs_correct_the_loss(tmp_path: Path, mode: str) -> None:
    trainer = make_trainer(
        tmp_path, learning_rate=0.0, vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_max=3.0
    )
    sampler = with_sampler(trainer, offset=0.1)
    trainer.train()
    rows = trainer.seen_rows[0]
    real = rows["tool_mask"].bool()
    ratio = rows["importance_sampling_ratio"]
    if mode == "token_truncate":
        assert torch.allclose(ratio[real], torch.exp(torch.tensor(0.1)), atol=1e-4)
    else:
        length = real.sum(1, keepdim=True)
        expected = torch.exp(0.1 * length)
        assert torch.allclose(ratio, expected.masked_fill(expected > 3.0, 0.0), atol=1e-3)
    assert sampler.synced == 1
    logged = trainer.state.log_history[0]
    assert logged["sampling/sampling_logp_difference/mean"] == pytest.approx(0.1, abs=1e-4)
    assert logged["sampling/importance_sampling_ratio/max"] == pytest.approx(float(ratio.max()), abs=1e-4)


BAD = [
    ({"per_device_train_batch_size": 6}, "Make it 8"),
    ({"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}, "Make it 12"),
    ({"loss_type": "grpo"}, "loss_type='grpo'"),
    ({"min_span": 5}, "max_span=8 is too small for min_span=5.*at least 9"),
    ({"allocation": "words"}, "allocation='words'"),
    ({"similarity_threshold": 1.5}, "similarity_threshold=1.5"),
    ({"max_sources": 0}, "max_sources=0"),
    ({"density_cap": 0.9}, "density_cap=0.9 must be 1 or more"),
    ({"top_entropy_quantile": 0.5}, "top_entropy_quantile"),
    ({"neftune_noise_alpha": 5.0}, r"neftune_noise_alpha=5.0 adds noise .*; set neftune_noise_alpha=0.0"),
    ({"importance_sampling_level": "sequence_token"}, "'sequence_token': choose one of 'token', 'sequence'"),
    ({"max_completion_length": None}, "max_completion_length=None must have a value; leave it out for the default 512"),
    ({"eval_temperature": None}, "eval_temperature=None must have a value; leave it out for the default 0.4"),
    ({"use_adaptive_entropy": True}, "entropy_coef"),
    ({"boundary_min": 0.2}, "boundary_min"),
    ({"scale_rewards": "batch"}, "scale_rewards='batch'"),
    ({"remove_unused_columns": True}, "reset"),
    ({"privileged_siblings": 4}, "privileged_siblings=4 leaves no ordinary sibling of num_generations=4"),
    ({"bf16_full_eval": True}, "bf16_full_eval=True"),
    ({"load_best_model_at_end": True, "greater_is_better": False}, "least success"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD)
def test_impossible_settings_are_refused_with_a_remedy(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make_config(tmp_path, **options)


def test_missing_parts_are_refused_before_the_model_loads(tmp_path: Path) -> None:
    args = make_config(tmp_path, method="align_opsd")
    with pytest.raises(TypeError, match="environment_factory"):
        AlignOPSDTrainer("/no/model", args, train_dataset=toy_dataset())
    with pytest.raises(ValueError, match="skill_bank"):
        AlignOPSDTrainer("/no/model", args, ToyEnvironment, toy_dataset(), encoder="lexical")
    with pytest.raises(ValueError, match="encoder"):
        AlignOPSDTrainer("/no/model", args, ToyEnvironment, toy_dataset(), skill_bank="webshop")
    parts = {"skill_bank": "webshop", "encoder": "lexical"}
    with pytest.raises(ValueError, match="task_id"):
        AlignOPSDTrainer("/no/model", args, ToyEnvironment, toy_dataset().remove_columns("task_id"), **parts)
    unnamed = toy_dataset().remove_columns("task_id").add_column("task_id", ["toy/0"] + [None] * 15)
    with pytest.raises(ValueError, match="row 1 has no task_id"):
        AlignOPSDTrainer("/no/model", args, ToyEnvironment, unnamed, **parts)
    with pytest.raises(ValueError, match="needs 2"):
        AlignOPSDTrainer("/no/model", args, ToyEnvironment, toy_dataset(1), **parts)
    with pytest.raises(ValueError, match="2 entries for 0 reward_funcs"):
        AlignOPSDTrainer("/no/model", make_config(tmp_path, reward_weights=[1.0, 2.0]), ToyEnvironment, toy_dataset())
    with pytest.raises(ValueError, match="unknown"):
        AlignOPSDTrainer("/no/model", make_config(tmp_path, method="alchemy"), ToyEnvironment, toy_dataset())


def test_no_setting_shadows_one_of_trls_by_accident() -> None:
    meant = {"max_completion_length", "num_generations_eval", "disable_dropout", "scale_rewards"}
    own = set(AlignOPSDConfig.__annotations__) - {"_VALID_DICT_FIELDS"}
    assert own & set(GRPOConfig.__dataclass_fields__) == meant
