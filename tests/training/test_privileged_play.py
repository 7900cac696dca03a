"""Siblings that the teacher plays with the skill in its prompt, and teachers that do not move with the policy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import difference, kept, log_probs_of, make_config, make_trainer, rounds_of
from peft import LoraConfig, get_peft_model

from alignopsd_trl.checks.intended import Intended, check
from alignopsd_trl.common.strategies import refuse_other_shards
from alignopsd_trl.methods import get_method, method_names
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.records import read_records
from alignopsd_trl.rollout.reading import parse_response
from alignopsd_trl.rollout.sampler import Responses
from alignopsd_trl.runs.health import Decay
from alignopsd_trl.scoring.packing import Packed, TreeRow
from alignopsd_trl.scoring.teacher import TeacherWeights
from alignopsd_trl.scoring.teacher_forcing import Padded
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.training import recorder
from alignopsd_trl.turns import Trajectory, Turn, TurnBatch

HALF = {"privileged_siblings": 2}


def asked_of(trainer: Any) -> list[list[int]]:
    """Keeps every prompt that is sampled for."""
    prompts: list[list[int]] = []
    make = trainer.backend.sampler

    def made(*arguments: Any, **options: Any) -> Any:
        sampler = make(*arguments, **options)

        def respond(asked: Any, until: Any = None) -> Any:
            prompts.extend(list(prompt) for prompt in asked)
            return sampler.respond(asked, until)

        return SimpleNamespace(respond=respond)

    trainer.backend.sampler = made
    return prompts


def holds(prompt: list[int], part: list[int]) -> bool:
    return any(prompt[start : start + len(part)] == part for start in range(len(prompt) - len(part) + 1))


@pytest.mark.parametrize("history", ["window", "conversation"])
@pytest.mark.parametrize("method", ["grpo", "align_opsd"])
@pytest.mark.parametrize("kind", ["live", "base"])
def test_trained_prompts_never_hold_the_skill_and_played_ones_always_do(
    tmp_path: Path, history: str, method: str, kind: str
) -> None:
    options = {"history": history, "max_prompt_length": 400, "teacher_model_kind": kind, "save_trajectories": True}
    trainer = make_trainer(tmp_path, method=method, **HALF | options)
    trajectories, prompts = kept(trainer.rollouts, "play_groups", parts=True), asked_of(trainer)
    trainer.train()
    skills = {tuple(trainer.processing_class(one.skill_text)["input_ids"]) for one in trajectories}
    assert all(len(skill) > 5 for skill in skills)
    skilled = [any(holds(prompt, list(skill)) for skill in skills) for prompt in prompts]
    played = [one for one in trajectories if one.privileged]
    turns = [turn for one in played for turn in one.turns]
    if method == "grpo":
        assert sum(skilled) == len(turns) and turns
    assert all(list(turn.privileged_ids) in prompts for turn in turns)
    for one in played:
        skill = trainer.processing_class(one.skill_text)["input_ids"]
        assert all(holds(turn.privileged_ids, skill) for turn in one.turns)
    (rows,) = trainer.seen_rows
    for ids, mask in zip(rows["prompt_ids"], rows["prompt_mask"], strict=True):
        assert not any(holds(ids[mask.bool()].tolist(), list(skill)) for skill in skills)
    for ids in rows["completion_ids"]:
        assert not any(holds(ids.tolist(), list(skill)) for skill in skills)
    records = read_records(tmp_path / "trajectories")
    assert records.groupby(["task", "rollout"]).privileged.first().groupby("task").sum().eq(2).all()
    assert not any(skill in prompt for skill, prompt in zip(records.skill_text, records.prompt, strict=True))


TALK = {"history": "conversation", "max_prompt_length": 400}
TALKERS = ("grpo", "grpo_opsd", "align_opsd")
COMBINED = [name for name in method_names() if get_method(name).name not in ("skill_grpo", "skill_prompt", "vanilla")]
"""Methods that train on what a teacher played: the others have the skill in their own prompt, or train nothing."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "shape"),
    [(name, {}) for name in COMBINED]
    + [(name, TALK | {"merge_rows": one}) for name in TALKERS for one in (True, False)],
)
def test_no_forward_that_is_trained_reads_the_skill(tmp_path: Path, method: str, shape: dict[str, Any]) -> None:
    options = {"auxiliary_loss": "distribution", "similarity_threshold": 0.1} if method == "align_opsd" else {}
    options |= {"teacher_model_kind": "base", "num_iterations": 2, "max_steps": 4, "save_trajectories": True}
    trainer = make_trainer(tmp_path, method=method, **HALF | options | shape)
    trajectories, read = kept(trainer.rollouts, "play_groups", parts=True), []

    def keep(module: Any, arguments: Any, given: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            read.extend(given["input_ids"].tolist())

    trainer.model.register_forward_pre_hook(keep, with_kwargs=True)
    trainer.train()
    skills = [list(trainer.processing_class(one)["input_ids"]) for one in {one.skill_text for one in trajectories}]
    assert read and skills and all(len(skill) > 5 for skill in skills)
    assert not any(holds(ids, skill) for ids in read for skill in skills)
    records = read_records(tmp_path / "trajectories")
    assert records.groupby(["task", "rollout", "step"]).privileged.first().sum() == 8
    assert not any(one.skill_text in text for one in trajectories for text in records.prompt)
    assert any(holds(turn.privileged_ids, skills[0]) for one in trajectories for turn in one.turns)


@pytest.mark.parametrize("kind", ["live", "base"])
def test_old_log_probs_are_the_students_under_the_ordinary_prompt(tmp_path: Path, kind: str) -> None:
    trainer = make_trainer(tmp_path, script=False, num_iterations=2, teacher_model_kind=kind, learning_rate=0.0, **HALF)
    trajectories = kept(trainer.rollouts, "play_groups", parts=True)
    trainer.train()
    (rows,) = trainer.seen_rows
    privileged = [turn for one in trajectories for turn in one.turns if one.privileged]
    assert privileged and all(turn.sampling_log_probs is None for turn in privileged)
    assert all(turn.sampling_log_probs for one in trajectories for turn in one.turns if not one.privileged)
    for row in range(len(rows["prompt_ids"])):
        prompt = rows["prompt_ids"][row][rows["prompt_mask"][row].bool()]
        mask = rows["completion_mask"][row].bool() & rows["tool_mask"][row].bool()
        response = rows["completion_ids"][row][mask]
        exact = log_probs_of(trainer.model, prompt, response)
        assert torch.allclose(rows["old_per_token_logps"][row][mask], exact, atol=1e-4)


def _turn(number: int) -> Turn:
    return Turn(number, "", [1], [1, 2], [3, 4], "", parse_response(None), "", number % 2 == 0, "")


def _group(privileged: int) -> TurnBatch:
    rewards = [0.0, 1.0, 0.0, 1.0]
    found = [Trajectory({}, "task", f"{place:04d}", privileged=place < privileged) for place in range(4)]
    for one, reward in zip(found, rewards, strict=True):
        one.turns, one.reward = [_turn(0), _turn(1)], reward
    return TurnBatch.of(found, 0)


def test_the_baseline_is_over_all_siblings_and_lost_privileged_ones_are_not_pushed_away(tmp_path: Path) -> None:
    config = make_config(tmp_path, invalid_action_penalty=0.1)
    plain, half = outcome(_group(0), config), outcome(_group(2), config)
    assert plain.advantage[0] < 0 < plain.advantage[2:4].abs().min()
    assert torch.equal(half.advantage[2:], plain.advantage[2:])  # the privileged winner and the ordinary siblings
    assert torch.equal(half.advantage[:2], torch.zeros(2, dtype=torch.float64))
    assert (half.residual[:4] == 0).all() and torch.equal(half.residual[4:], plain.residual[4:])


def test_success_is_that_of_the_ordinary_siblings(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **HALF)
    trajectories = kept(trainer.rollouts, "play_groups", parts=True)
    trainer.train()
    logged = trainer.state.log_history[0]
    for name, chosen in (("episodes/success", False), ("privileged/success", True)):
        won = [bool(one.won) for one in trajectories if one.privileged == chosen]
        assert len(won) == len(trajectories) // 2 and logged[name] == pytest.approx(sum(won) / len(won))


def test_a_live_teacher_that_gets_worse_is_told_once() -> None:
    half = partial(Decay, "privileged success", lambda first: first / 2)
    decay = half()
    told = [decay.problem(success) for success in (0.8, 0.8, 0.8, 0.5, 0.3, 0.2, 0.1)]
    assert told[:5] == [None] * 5 and "0.80 to 0.33" in told[5] and told[6] is None
    assert not any(half().problem(0.5) for _ in range(9))


@pytest.mark.parametrize("kind", ["live", "base"])
def test_the_gap_of_won_turns_is_logged_and_its_fall_is_said_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path, method="align_opsd", teacher_model_kind=kind, learning_rate=0.0)
    rounds = rounds_of(trainer)
    trainer.train()
    (played,) = rounds
    won = [any(turn in one.turns for one in played.trajectories if one.won) for turn in played.batch.turns]
    gaps = [gap for gap, one in zip(played.credit.trace["token_identity_gaps"], won, strict=True) if one]
    tokens = torch.cat([torch.tensor(gap).double() for gap in gaps if gap is not None])
    name = "teacher/gap_of_won_turns"
    assert trainer.state.log_history[0][name] == pytest.approx(float(tokens.mean()), abs=1e-6)
    capsys.readouterr()
    for fallen in (0.02, 0.0, -0.4, -0.6, -0.7, -0.8):
        monkeypatch.setattr("alignopsd_trl.training.recorder.gap_of_won", lambda played, gap=fallen: {name: gap})
        trainer.recorder.record(played, None, {})
    told = capsys.readouterr().out
    assert told.count("the gap of won turns fell from") == (kind == "live")
    assert told.count("moves with the policy") == (kind == "live")


@pytest.mark.parametrize(
    ("gaps", "options", "told"),
    [
        ((-0.03, -0.02, 0.0), {}, True),
        ((-0.03, 0.0, -0.03), {}, False),
        ((-0.03, -0.02), {"distribution_rounds": 5}, False),
        ((-0.03, -0.02), {"auxiliary_loss": "none"}, False),
    ],
)
def test_a_followed_teacher_that_holds_back_is_told_after_two_rounds(
    tmp_path: Path,
    gaps: tuple[float, ...],
    options: dict[str, Any],
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = iter(gaps)
    monkeypatch.setattr(recorder, "gap_of_won", lambda played: {"teacher/gap_of_won_turns": next(given)})
    options = {"auxiliary_loss": "distribution", "teacher_model_kind": "base", **options}
    trainer = make_trainer(tmp_path, method="align_opsd", max_steps=len(gaps), **options)
    trainer.train()
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("it holds the policy back. distribution_rounds=2 leaves") == told


# Weights


def _values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


@torch.no_grad()
def _logits(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.tensor([[5, 6, 7, 8]])).logits


@pytest.mark.parametrize("beta", [0.0, 0.02])
@pytest.mark.parametrize("adapter", [False, True])
def test_a_base_teacher_stays_what_the_policy_was(tmp_path: Path, beta: float, adapter: bool) -> None:
    parts = {"peft_config": LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")} if adapter else {}
    trainer = make_trainer(tmp_path, teacher_model_kind="base", max_steps=2, beta=beta, parts=parts, **HALF)
    before = _logits(trainer.model)
    trainer.train()
    values, after = _values(trainer.model), _logits(trainer.model)
    assert (before - after).abs().max() > 1e-4
    with trainer.teacher_weights.in_place():
        assert torch.equal(before, _logits(trainer.model))
    assert torch.equal(after, _logits(trainer.model)) and difference(values, _values(trainer.model)) == 0.0


@pytest.mark.parametrize("learnt", [False, True])
def test_an_adapter_that_adds_nothing_is_switched_off_and_no_other(learnt: bool) -> None:
    settings = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=not learnt)
    model = get_peft_model(build_model(build_tokenizer()), settings)
    layer, before = model.base_model.model.model.layers[0].self_attn.q_proj, _logits(model)
    weights, trained = TeacherWeights(model), len(_values(model))
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += "lora_B" in name
    with weights.in_place():
        assert layer.disable_adapters == (not learnt) and torch.equal(_logits(model), before)
    assert not layer.disable_adapters and len(_values(model)) == trained


def test_thinking_and_scores_are_the_teachers(tmp_path: Path) -> None:
    """With a live teacher, identity gaps of prompts without skill are 0 in every round; a base teacher's are not once
    the policy has moved."""
    gaps = {}
    for kind in ("live", "base"):
        folder = tmp_path / kind
        trainer = make_trainer(folder, teacher_model_kind=kind, method="rlsd", max_steps=2, self_check=False)
        trainer.rollouts.skills = lambda *task: ("", ())
        assigned = trainer.method.assign
        seen = gaps[kind] = []

        def watched(batch: TurnBatch, teacher: Any, step: int, seen=seen, assigned=assigned) -> Any:
            rows = torch.arange(len(batch))
            seen.append(
                float((teacher.score(batch, rows, rows) - batch.student_log_probs)[batch.scored_mask].abs().max())
            )
            return assigned(batch, teacher, step)

        trainer.method.assign = watched
        trainer.train()
    assert max(gaps["live"]) < 1e-4 and gaps["base"][0] < 1e-4 < 1e-3 < gaps["base"][1]


def test_it_plays_thinks_and_scores_with_its_own_weights(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, teacher_model_kind="base", method="align_opsd", max_steps=2)
    row = Padded(torch.tensor([[5, 6, 7]]), torch.ones(1, 3, dtype=torch.int64))
    policy, teacher = PolicyScorer(trainer), PolicyScorer(trainer, teacher=trainer.teacher_weights)
    rows = Packed.of([TreeRow([5, 6, 7, 5, 6, 7], [(3, 3)])], 0)
    before, scored, states = _values(trainer.model), policy.plain(row, row), policy.states(rows)
    trainer.train()
    assert not torch.allclose(policy.plain(row, row), scored, atol=1e-3)
    assert torch.allclose(teacher.plain(row, row), scored, atol=1e-6)
    assert torch.allclose(teacher.states(rows), states, atol=1e-6)
    seen: list[float] = []

    def respond(prompts: Any, until: Any = None) -> Responses:
        seen.append(difference(before, _values(trainer.model)))
        return Responses([[1] for _ in prompts], None)

    trainer.backend.sampler = lambda *arguments, **options: SimpleNamespace(respond=respond)
    with trainer.samplers.snapshot() as snapshot:
        for sampler in (snapshot.sampler, snapshot.thinker, snapshot.teacher):
            sampler.respond([[1, 2]])
    assert seen[0] > 1e-3 and seen[1:] == [0.0, 0.0]


@pytest.mark.slow
def test_a_resumed_run_has_the_same_teacher(tmp_path: Path) -> None:
    settings = {
        "teacher_model_kind": "base",
        "method": "align_opsd",
        "auxiliary_loss": "distribution",
        "distribution_rounds": 3,  # of 4
        "script": False,
        "save_strategy": "steps",
        "save_steps": 2,
        "lr_scheduler_type": "constant",
        "save_trajectories": True,
        **HALF,
    }
    whole = make_trainer(tmp_path / "whole", max_steps=4, **settings)
    policy = tmp_path / "whole" / "policy"
    whole.train()
    make_trainer(tmp_path / "parts", policy=policy, max_steps=2, **settings).train()
    rest = make_trainer(tmp_path / "parts", policy=policy, max_steps=4, **settings)
    rest.train(resume_from_checkpoint=True)
    assert difference(_values(whole.model), _values(rest.model)) == 0.0
    with whole.teacher_weights.in_place(), rest.teacher_weights.in_place():
        assert difference(_values(whole.model), _values(rest.model)) == 0.0
    one, two = (read_records(tmp_path / name / "trajectories").drop(columns="run") for name in ("whole", "parts"))
    assert one.equals(two)


# What is refused


@pytest.mark.parametrize(
    ("options", "bank", "said"),
    [
        ({"method": "grpo", **HALF}, None, "there must be a skill_bank"),
        ({"method": "skill_grpo", **HALF}, "webshop", "all siblings read the skill"),
    ],
)
def test_play_that_makes_no_sense_is_refused(
    tmp_path: Path, options: dict[str, Any], bank: str | None, said: str
) -> None:
    from fakes.toy import toy_dataset

    config = make_config(tmp_path, **options)
    with pytest.raises(ValueError, match=said):
        check(Intended(config, get_method(config.method)(config), object(), toy_dataset(), bank, "lexical"))


@pytest.mark.parametrize(
    ("zero", "said"),
    [
        ({"zero_hpz_partition_size": 2}, "DeepSpeed's zero_hpz_partition_size=2"),
        ({"offload_param": {"device": "cpu"}}, "DeepSpeed's offload_param to cpu"),
    ],
)
def test_shards_that_no_others_can_take_the_place_of_are_refused(zero: dict[str, Any], said: str) -> None:
    def spread(kind: DistributedType, **zero: Any) -> Any:
        plugin = SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": 3, **zero}})
        return SimpleNamespace(distributed_type=kind, state=SimpleNamespace(deepspeed_plugin=plugin))

    with pytest.raises(ValueError, match=f"teacher_model_kind='base' with {said}"):
        refuse_other_shards(spread(DistributedType.DEEPSPEED, **zero), "teacher_model_kind='base'")
    refuse_other_shards(spread(DistributedType.DEEPSPEED), "teacher_model_kind='base'")
    refuse_other_shards(SimpleNamespace(distributed_type=DistributedType.FSDP), "teacher_model_kind='base'")
