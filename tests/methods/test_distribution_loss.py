"""``auxiliary_loss="distribution"``: the divergence to the rectified teacher's likeliest tokens, in training.

Its formula is held by golden vectors (`tests/data/method/distribution.json`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.tables import config, small_world
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import difference, hand_loss, losses, make_config, make_trainer, rounds_of, trained
from peft import LoraConfig
from trl.experimental.sdft.loss_utils import compute_divergence

from alignopsd_trl.methods import get_method
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.training.recorder import Round
from alignopsd_trl.training.turn_rows import live_rows

OPTIONS: dict[str, Any] = {
    "method": "align_opsd",
    "auxiliary_loss": "distribution",
    "distribution_size": 7,
    "distribution_temperature": 1.2,
    "learning_rate": 0.0,
}


def view(model: Any, prompt: list[int], response: list[int], temperature: float) -> torch.Tensor:
    """Log-probs ``(T, V)`` at each position of a response."""
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def expected_loss(model: Any, played: Round, size: int, beta: float, temperature: float) -> torch.Tensor:
    """Turn by turn and view by view, with TRL's divergence."""
    trace, batch = played.credit.trace, played.batch
    weight = played.credit.targets.get("weight", torch.ones(batch.policy_mask.shape))
    total = torch.zeros(())
    for row, turn in enumerate(batch.turns):
        with torch.no_grad():
            teacher = view(model, turn.privileged_ids, turn.response_ids, temperature)
            if alpha := trace["alpha"][row]:
                prompts = [batch.turns[source].privileged_ids for source in trace["sources"][row]]
                matched = torch.stack([view(model, one, turn.response_ids, temperature).exp() for one in prompts])
                mixed = (torch.tensor(trace["source_weights"][row]).float()[:, None, None] * matched).sum(0)
                teacher = (1 - alpha) * teacher + alpha * mixed.log()
            likeliest = teacher.topk(size).indices
            teacher = teacher.gather(-1, likeliest).log_softmax(-1)
        student = view(model, turn.prompt_ids, turn.response_ids, temperature).gather(-1, likeliest).log_softmax(-1)
        length = len(turn.response_ids)
        total = total + (compute_divergence(student, teacher, beta) * weight[row, :length]).sum()
    return total / batch.policy_mask.sum()


@pytest.mark.parametrize(
    ("weighting", "share", "tokens", "twice"),
    mostly_full([("evidence", True, 200, False), ("evidence", True, 200, True), ("flat", False, 32768, True)], quick=1),
)
def test_loss_and_gradient_are_those_of_views_taken_one_by_one(
    weighting: str, share: bool, tokens: int, twice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = OPTIONS | {"top_p": 1.0 if twice else 0.99}  # only plain sampling keeps prompts
    if not twice:
        monkeypatch.setattr(PolicyScorer, "states", None)  # it is called no second time
    options |= {"distribution_weighting": weighting, "distribution_beta": 0.3, "distribution_coefficient": 2.0}
    trainer = make_trainer(
        tmp_path, share_prefixes=share, tokens_per_forward=tokens, similarity_threshold=0.1, **options
    )
    rounds = rounds_of(trainer)
    trainer.train()
    (played,), model = rounds, trainer.accelerator.unwrap_model(trainer.model)
    assert max(filter(None, played.credit.trace["alpha"])) > 0.05, "no view was mixed"
    policy, gradient = hand_loss(model, trainer.seen_rows)
    model.zero_grad()
    added = expected_loss(model, played, 7, 0.3, 1.2)
    added.backward()
    expected = {name: gradient[name] + 2.0 * value.grad for name, value in model.named_parameters()}
    assert float(added.detach()) > 1e-3
    assert losses(trainer)[0] == pytest.approx(policy + 2.0 * float(added.detach()), abs=1e-5)
    assert difference(trainer.seen_gradients[0], expected) < 1e-5


def test_ids_and_logits_of_the_likeliest_tokens_are_kept_and_no_vocabulary(tmp_path: Path) -> None:
    trainer = trained(tmp_path, **OPTIONS)
    (rows,) = trainer.seen_rows
    assert {value.size(2) for value in rows.values() if value.dim() == 3} == {7}
    assert "target/weight" not in rows


@pytest.mark.full
def test_with_an_adapter_and_a_teacher_that_stands_still(tmp_path: Path) -> None:
    adapter = LoraConfig(r=4, lora_alpha=32, task_type="CAUSAL_LM", target_modules="all-linear")
    options = OPTIONS | {"teacher_model_kind": "base", "num_iterations": 2, "max_steps": 4, "learning_rate": 0.3}
    trainer = make_trainer(tmp_path, parts={"peft_config": adapter}, optim="sgd", **options)
    rounds = rounds_of(trainer)
    trainer.train()
    second = rounds[1]
    policy: Any = trainer.model
    with torch.no_grad(), policy.disable_adapter():
        turn = second.batch.turns[0]
        base = view(trainer.model, turn.privileged_ids, turn.response_ids, 1.0)
    with torch.no_grad():
        live = view(trainer.model, turn.privileged_ids, turn.response_ids, 1.0)
    assert (base - live).abs().max() > 1e-3, "nothing was learned"
    if not second.credit.trace["alpha"][0]:
        kept = second.credit.targets["teacher"][0, : len(turn.response_ids)]
        wanted = (base / 1.2).log_softmax(-1).topk(7).values * 1.2
        assert torch.allclose(kept, wanted, atol=1e-4)
    assert torch.tensor(losses(trainer)).isfinite().all()


@pytest.mark.parametrize("allocation", ["span", "none"])
def test_after_its_rounds_the_distribution_is_gone_and_reward_goes_on(tmp_path: Path, allocation: str) -> None:
    """From then on rows, loss and gradient are those of the method without the distribution, for the same weights."""
    options: dict[str, Any] = {"allocation": allocation, "rectify": allocation != "none", "beta": 0.02, "max_steps": 3}
    ended = make_trainer(tmp_path / "ended", **OPTIONS | options | {"distribution_rounds": 2})
    never = make_trainer(tmp_path / "never", **OPTIONS | options | {"auxiliary_loss": "none"})
    for trainer in (ended, never):
        trainer.train()
    *taught, last = ended.seen_rows
    assert all("target/vocabulary_ids" in rows for rows in taught) and len(taught) == 2
    assert last.keys() == never.seen_rows[-1].keys()
    assert all(torch.equal(value, never.seen_rows[-1][name]) for name, value in last.items())
    assert losses(ended)[-1] == pytest.approx(losses(never)[-1], rel=1e-6)  # two float32 steps apart were seen
    assert difference(ended.seen_gradients[-1], never.seen_gradients[-1]) < 1e-7
    logged = [{name for name in trainer.state.log_history[-2] if "seconds" not in name} for trainer in (ended, never)]
    assert logged[0] == logged[1]


def test_more_tokens_than_the_model_has_are_all_of_them(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **OPTIONS | {"distribution_size": 1000})
    rounds, own = rounds_of(trainer), len(trainer.processing_class)
    trainer.processing_class.add_tokens(["never", "said"])  # as some published tokenizers know more than their model
    trainer.train()
    assert rounds[0].credit.targets["teacher"].size(-1) == own < len(trainer.processing_class)


def test_a_model_that_changes_its_logits_after_the_head_is_refused_where_views_are_mixed(tmp_path: Path) -> None:
    model = build_model(build_tokenizer())
    model.config.final_logit_softcapping = 30.0
    model.save_pretrained(tmp_path / "soft")
    with pytest.raises(ValueError, match=r"final_logit_softcapping=30.0\); use rectify=False"):
        make_trainer(tmp_path, policy=tmp_path / "soft", **OPTIONS)
    make_trainer(tmp_path, policy=tmp_path / "soft", rectify=False, **OPTIONS)


def test_weights_of_tokens_keep_the_budget_of_a_rollout() -> None:
    batch, teacher = small_world()
    for kind in ("span", "evidence"):
        for allocation in ("span", "random", *(("turn", "token") if kind == "evidence" else ())):
            options = {"auxiliary_loss": "distribution", "distribution_weighting": kind, "allocation": allocation}
            credit = get_method("align_opsd")(config(**options)).assign(batch, teacher, step=0)
            weight = credit.targets["weight"] * batch.policy_mask
            for rows in batch.groups.by_rollout:
                assert float(weight[rows].sum()) == pytest.approx(float(batch.policy_mask[rows].sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("weighting", "allocation", "message"),
    [
        ("span", "turn", "needs weights that allocation='turn' does not make; use 'span' or 'random', or 'flat'"),
        ("evidence", "none", "needs weights that allocation='none' does not make"),
    ],
)
def test_weights_that_are_not_made_are_refused(tmp_path: Path, weighting: str, allocation: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(tmp_path, auxiliary_loss="distribution", distribution_weighting=weighting, allocation=allocation)


@pytest.mark.parametrize("solved", [True, False])
def test_a_group_that_always_won_is_taught_only_if_asked_for(tmp_path: Path, solved: bool) -> None:
    trainer = make_trainer(tmp_path, teach_solved=solved, **OPTIONS)
    inner, batches = trainer.scorer.batch, []

    def batch(trajectories: Any, *given: Any) -> Any:
        won, other = trajectories[0].task, trajectories[-1].task
        for place, one in enumerate(trajectories):
            one.won, one.reward = one.task == won, float(one.task == won or (one.task == other and place % 2))
        batches.append(made := inner(trajectories, *given))
        return made

    trainer.scorer.batch = batch
    trainer.train()
    made, live = batches[0], live_rows(trainer.seen_rows[0])[: len(batches[0])]
    assert made.won.any() and not made.won.all()
    assert live.all() if solved else torch.equal(live, ~made.won) and torch.equal(made.taught, ~made.won)
