"""What each row of the table does to an update: signs by exact enumeration, neutral weights, needs, options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from fakes.tables import play, random_batch, scoring
from fakes.trainers import difference, losses, make_config, trained

from alignopsd_trl.methods import Method, get_method
from alignopsd_trl.methods import objectives as o
from alignopsd_trl.methods.baseline import Baseline
from alignopsd_trl.turns import Groups, TurnBatch

WEIGHTED = ("rlsd", "step_opsd", "agent_opsd")
DISTILLED = ("opsd", "grpo_opsd", "skill_sd", "sdar")
STATES = ("gigpo", "hgpo", "graphgpo", "gagpo", "beacon")
NAMES = ("vanilla", "skill_prompt", "skill_grpo", *STATES, *WEIGHTED, *DISTILLED)


def method(name: str, folder: Path, **config: Any) -> Method:
    return get_method(name)(make_config(folder, **config))


# Signs, by enumeration of a categorical policy


def expected_gradient(loss: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor, sampler: torch.Tensor) -> Any:
    """Gradient with respect to the logits of the mean of loss(l_y) over y drawn from ``sampler``."""
    live = logits.clone().requires_grad_()
    total = (sampler * loss(live.log_softmax(-1))).sum()
    return torch.autograd.grad(total, live)[0]


def kl_gradient(logits: torch.Tensor, teacher: torch.Tensor, forward: bool = False) -> torch.Tensor:
    live = logits.clone().requires_grad_()
    own = live.log_softmax(-1)
    kl = (teacher.exp() * (teacher - own)).sum() if forward else (own.exp() * (own - teacher)).sum()
    return torch.autograd.grad(kl, live)[0]


@pytest.fixture
def policy() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    logits, away, teacher = (torch.randn(6, generator=draw, dtype=torch.float64) for _ in range(3))
    return {"logits": logits, "old": (logits + 0.3 * away).log_softmax(-1), "teacher": teacher.log_softmax(-1)}


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("name", ["opsd", "grpo_opsd", "skill_sd"])
def test_expected_gradient_is_that_of_the_reverse_kl(
    name: str, on_policy: bool, policy: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    logits, teacher = policy["logits"], policy["teacher"]
    old = logits.log_softmax(-1) if on_policy else policy["old"]
    row = method(name, tmp_path)
    found = expected_gradient(lambda live: row.auxiliary({"teacher": teacher}, live, old), logits, old.exp())
    torch.testing.assert_close(found, kl_gradient(logits, teacher), atol=1e-12, rtol=1e-9)


def test_the_constant_gate_has_no_expected_gradient(policy: dict[str, torch.Tensor], tmp_path: Path) -> None:
    row = method("grpo_opsd", tmp_path, method_options={"form": "constant_gate"})
    own = policy["logits"].log_softmax(-1)
    found = expected_gradient(
        lambda live: row.auxiliary({"teacher": policy["teacher"]}, live, own), policy["logits"], own.exp()
    )
    assert found.abs().max() < 1e-12


@pytest.mark.parametrize(("name", "options"), [("sdar", {}), ("opsd", {"form": "gated"})])
def test_the_gated_loss_goes_toward_the_teacher(
    name: str, options: dict[str, Any], policy: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    row, logits = method(name, tmp_path, method_options=options), policy["logits"]
    own = logits.log_softmax(-1)

    def gradient(teacher: torch.Tensor) -> torch.Tensor:
        return expected_gradient(lambda live: row.auxiliary({"teacher": teacher}, live, own), logits, own.exp())

    assert gradient(policy["teacher"]) @ kl_gradient(logits, policy["teacher"]) > 0
    near = (logits + 1e-4 * policy["teacher"]).log_softmax(-1)
    torch.testing.assert_close(gradient(near), 5 / 4 * kl_gradient(logits, near), atol=1e-8, rtol=1e-3)
    live = own.clone().requires_grad_()
    row.auxiliary({"teacher": policy["teacher"]}, live, own).sum().backward()
    assert (live.grad < 0).all() and (live.grad >= -1).all()  # every sampled token is pushed up


def test_the_vocabulary_form_has_both_kls_at_its_ends(policy: dict[str, torch.Tensor]) -> None:
    logits, teacher = policy["logits"], policy["teacher"]
    for beta, forward in ((0.0, True), (1.0, False)):
        live = logits.clone().requires_grad_()
        found = torch.autograd.grad(o.divergence_loss(live, teacher, beta, temperature=1.0), live)[0]
        torch.testing.assert_close(found, kl_gradient(logits, teacher, forward), atol=1e-12, rtol=1e-9)


WEIGHTINGS = [
    ("rlsd", {}),
    ("rlsd", {"negative_only": True}),
    ("step_opsd", {}),
    ("step_opsd", {"shape": "exp"}),
    ("step_opsd", {"aggregate": "turn"}),
]


@pytest.mark.parametrize(("name", "options"), WEIGHTINGS)
def test_weights_move_the_policy_with_the_teacher_and_never_against_the_outcome(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Four actions, each played once: two win, two fail; the teacher likes one of each. The step along the policy
    gradient, enumerated, moves liked actions above disliked ones, against GRPO's step."""
    batch = play({("t", f"r{n}"): [1] for n in range(4)}, [1, 1, 0, 0])
    teacher = torch.tensor([0.4, 0.1, 0.4, 0.1]).log()
    batch = replace(batch, student_log_probs=torch.full((4, 1), 0.25).log())
    credit = method(name, tmp_path, method_options=options).assign(batch, scoring(teacher[:, None]), step=0)
    plain = method("grpo", tmp_path).assign(batch, scoring(), step=0)

    def step(advantage: torch.Tensor) -> torch.Tensor:
        policy = torch.full((4,), 0.25)
        return -expected_gradient(lambda live: -advantage[:, 0] * live, torch.zeros(4), policy)

    assert torch.equal(credit.advantages.sign(), plain.advantages.sign())
    moved, difference = step(credit.advantages), step(credit.advantages) - step(plain.advantages)
    assert moved[:2].min() > 0 > moved[2:].max()
    assert difference[2] > difference[3]  # of the failures, the one that the teacher dislikes is suppressed more
    if not options.get("negative_only"):
        assert difference[0] > difference[1]
    bound = 0.5 * 0.2 if name == "rlsd" else 0.2 * 0.2
    assert (credit.advantages / plain.advantages - 1).abs().max() <= bound + 1e-6


@pytest.mark.parametrize("name", DISTILLED)
def test_the_gap_is_logged_where_the_snapshot_was_scored_anyway(name: str, tmp_path: Path) -> None:
    batch = random_batch()
    teacher = scoring(batch.student_log_probs + 0.25)
    assert method(name, tmp_path).assign(batch, teacher, 0).metrics["teacher/gap"] == pytest.approx(0.25, abs=1e-6)
    batch = replace(batch, student_log_probs=None)
    assert "teacher/gap" not in method(name, tmp_path).assign(batch, teacher, 0).metrics


def test_beliefs_reward_the_turn_that_the_teacher_likes(tmp_path: Path) -> None:
    batch = play({("t", "r0"): [2, 2], ("t", "r1"): [2, 2]}, [1, 0])
    batch = replace(batch, student_log_probs=torch.full((4, 2), -1.0))
    gap = torch.tensor([0.5, -0.5, 0.5, -0.5])[:, None]
    found = method("agent_opsd", tmp_path).assign(batch, scoring(batch.student_log_probs + gap), 0).advantages
    plain = method("grpo", tmp_path).assign(batch, scoring(), 0).advantages
    ratio = (found / plain)[:, 0]
    assert torch.allclose(ratio, torch.tensor([1.1, 0.9, 0.9, 1.1]), atol=1e-4)


# Neutral weights


@pytest.mark.parametrize("step", [0, 7, 200])
@pytest.mark.parametrize(("name", "options"), [*WEIGHTINGS, ("agent_opsd", {})])
def test_teacher_equal_to_student_reproduces_grpo(name: str, options: Any, step: int, tmp_path: Path) -> None:
    batch = random_batch()
    credit = method(name, tmp_path, method_options=options).assign(batch, scoring(batch.student_log_probs), step)
    plain = method("grpo", tmp_path).assign(batch, scoring(), step)
    torch.testing.assert_close(credit.advantages, plain.advantages, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["grpo_opsd", "skill_sd", "opsd"])
def test_teacher_equal_to_student_leaves_no_auxiliary_gradient(name: str, tmp_path: Path) -> None:
    batch = random_batch()
    live = batch.student_log_probs.clone().requires_grad_()
    row = method(name, tmp_path)
    credit = row.assign(batch, scoring(batch.student_log_probs), 0)
    row.auxiliary(credit.targets, live, batch.student_log_probs).sum().backward()
    assert live.grad.abs().max() < 1e-6
    expected = method("grpo", tmp_path).assign(batch, scoring(), 0).advantages
    assert torch.equal(credit.advantages, torch.zeros_like(expected) if name == "opsd" else expected)


@pytest.mark.parametrize("name", [*WEIGHTED, "skill_grpo", "sdar"])
def test_equal_rewards_give_exactly_zero(name: str, tmp_path: Path) -> None:
    batch = random_batch()
    batch.reward.fill_(0.3)
    credit = method(name, tmp_path).assign(batch, scoring(torch.zeros_like(batch.student_log_probs)), 0)
    assert torch.equal(credit.advantages, torch.zeros_like(credit.advantages))


@pytest.mark.parametrize("name", [*WEIGHTED, *DISTILLED, *STATES, "skill_grpo"])
def test_a_process_without_turns_makes_the_same_calls(name: str, tmp_path: Path) -> None:
    batch = TurnBatch.of([], pad_id=0)
    batch = replace(batch, student_log_probs=torch.zeros_like(batch.policy_mask, dtype=torch.float32))
    teacher = scoring(batch.student_log_probs)
    credit = method(name, tmp_path).assign(batch, teacher, 0)
    assert credit.advantages.shape == batch.policy_mask.shape
    assert teacher.calls == ["score"] * (name in (*WEIGHTED, *DISTILLED))


# Needs and contexts


CONTEXTS = {  # trains, skill in the rollout, in the evaluation, student scores, teacher scores
    "vanilla": (False, False, False, False, False),
    "skill_prompt": (False, False, True, False, False),
    "skill_grpo": (True, True, False, False, False),
    **{name: (True, False, False, False, False) for name in STATES},
    **{name: (True, False, False, True, True) for name in WEIGHTED},
    **{name: (True, False, False, False, True) for name in DISTILLED},
}


@pytest.mark.parametrize("name", NAMES)
def test_contexts_and_needs(name: str, tmp_path: Path) -> None:
    row = method(name, tmp_path)
    assert CONTEXTS[name] == (
        row.trains,
        row.skills_in_rollout,
        row.skills_in_evaluation,
        row.needs_student_log_probs,
        row.needs_teacher,
    )
    assert not row.needs_encoder
    batch, teacher = random_batch(), scoring(torch.zeros_like(random_batch().student_log_probs))
    batch = replace(batch, student_log_probs=batch.student_log_probs if row.needs_student_log_probs else None)
    if row.trains:
        row.assign(batch, teacher, 0)
    assert teacher.calls == ["score"] * row.needs_teacher


@pytest.mark.parametrize(
    ("name", "options", "policy", "auxiliary"),
    [
        ("skill_grpo", {}, 1.0, 0.0),
        ("rlsd", {}, 1.0, 0.0),
        ("opsd", {}, 0.0, 1.0),
        ("opsd", {"form": "gated"}, 0.0, 0.01),
        ("opsd", {"form": "vocabulary", "vocabulary_coefficient": 0.5}, 0.0, 0.5),
        ("grpo_opsd", {}, 1.0, 0.01),
        ("grpo_opsd", {"form": "constant_gate"}, 1.0, 0.01),
        ("grpo_opsd", {"form": "vocabulary", "vocabulary_coefficient": 2.0}, 1.0, 2.0),
        ("skill_sd", {}, 1.0, 0.001),
        ("sdar", {"coefficient": 0.1}, 1.0, 0.1),
    ],
)
def test_coefficients(name: str, options: Any, policy: float, auxiliary: float, tmp_path: Path) -> None:
    found = method(name, tmp_path, method_options=options)
    assert (found.policy_weight, found.auxiliary_weight) == (policy, auxiliary)


@pytest.mark.parametrize(("size", "chunk"), [(5, 16384), (10_000, 300)])
def test_the_vocabulary_form_is_the_divergence_of_both_views_logits(size: int, chunk: int, tmp_path: Path) -> None:
    options = {"form": "vocabulary", "vocabulary_size": size, "vocabulary_coefficient": 0.5}
    trainer = trained(
        tmp_path, method="opsd", method_options=options, tokens_per_forward=chunk, max_steps=1, learning_rate=0.0
    )
    rows, model = trainer.seen_rows[0], trainer.accelerator.unwrap_model(trainer.model)
    assert rows["target/teacher"].size(-1) == min(size, len(trainer.processing_class))
    model.zero_grad()
    total = torch.zeros(())
    for row in range(len(rows["prompt_ids"])):
        prompt = rows["prompt_ids"][row][rows["prompt_mask"][row].bool()]
        response = rows["completion_ids"][row][rows["completion_mask"][row].bool()]
        logits = model(torch.cat([prompt, response]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
        ids = rows["target/vocabulary_ids"][row][: len(response)]
        loss = o.divergence_loss(logits.gather(-1, ids), rows["target/teacher"][row][: len(response)], 0.5, 1.1)
        total = total + 0.5 * (loss * rows["tool_mask"][row][: len(response)]).sum() / rows["tool_mask"].sum()
    total.backward()
    expected = {name: value.grad.clone() for name, value in model.named_parameters()}
    assert total > 0 and losses(trainer) == [pytest.approx(total.item(), abs=2e-4)]
    assert difference(trainer.seen_gradients[0], expected) < 1e-6


# Options


def test_every_option_has_help_and_every_choice_is_accepted(tmp_path: Path) -> None:
    for name in NAMES:
        kind = get_method(name)
        assert issubclass(kind, Baseline) and kind.__doc__
        for field in dataclasses.fields(kind.Options):
            assert field.metadata["help"]
            hint = get_type_hints(kind.Options)[field.name]
            for choice in get_args(hint) if get_origin(hint) is Literal else (field.default,):
                assert (
                    getattr(method(name, tmp_path, method_options={field.name: choice}).options, field.name) == choice
                )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rlsd", {"lambda": 0.5}, "'lambda'.* is unknown to method 'rlsd'; known options: mixing, band, decay_steps"),
        ("skill_grpo", {"mixing": 0.5}, "unknown to method 'skill_grpo'; it has no options"),
        ("opsd", {"form": "logits"}, "choose one of 'sampled_token', 'gated', 'vocabulary'"),
        ("sdar", {"gate_beta": "five"}, "'gate_beta'.*'five' of method 'sdar' must be a number"),
        ("rlsd", {"decay_steps": 1.5}, "must be a whole number"),
        ("rlsd", {"negative_only": 1}, "must be true or false"),
        ("rlsd", {"mixing": -0.1}, "must not be negative"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        method(name, tmp_path, method_options=options)


def test_options_arrive_as_json_from_the_command_line(tmp_path: Path) -> None:
    row = method("step_opsd", tmp_path, method_options='{"aggregate": "turn", "mixing": 1}')
    assert (row.options.aggregate, row.options.mixing) == ("turn", 1.0)
    assert method("step_opsd", tmp_path, method_options={"mixing": "5e-2"}).options.mixing == 0.05  # as YAML reads it


# Formulas by hand


def test_mixing_falls_with_the_updates(tmp_path: Path) -> None:
    batch = random_batch()
    teacher = scoring(batch.student_log_probs * 0.5)
    rlsd, steps = method("rlsd", tmp_path), method("step_opsd", tmp_path)
    assert [rlsd.assign(batch, teacher, s).metrics["credit/mixing"] for s in (0, 49, 99, 500)] == [0.495, 0.25, 0, 0]
    assert [steps.assign(batch, teacher, s).metrics["credit/mixing"] for s in (24, 49)] == [0.1, 0.0]
    constant = method("rlsd", tmp_path, method_options={"decay_steps": 0})
    assert constant.assign(batch, teacher, 10**6).metrics["credit/mixing"] == 0.5


def test_steps_are_equalised_within_a_rollout_and_a_factor_of_two() -> None:
    advantage = torch.tensor([[1.0, 3.0], [4.0, 9.0], [0.1, 0.1], [7.0, 7.0]])
    mask = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
    found = o.equalise_steps(advantage, mask, Groups.of(torch.zeros(4).long(), torch.tensor([0, 0, 0, 1])))
    mean = (2.0 + 4.0 + 0.1) / 3
    expected = torch.tensor([[1.0, 3.0], [4.0, 0.0], [0.2, 0.2], [7.0, 7.0]])
    expected[0] *= mean / 2
    expected[1] *= mean / 4
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_states_that_siblings_share_compare_their_returns(tmp_path: Path) -> None:
    """Both rollouts answer their first turn with x, so their second turns form a group; third turns meet alone."""
    batch = play({("t", "r0"): [1, 1, 1], ("t", "r1"): [1, 1]}, [1, 0], observations="xyzxw")
    row = method("gigpo", tmp_path, method_options={"gamma": 0.5})
    credit = row.assign(batch, scoring(), 0)
    outcome = 0.5**0.5 / (1 + 1e-6 / 0.5**0.5)
    steps = torch.tensor([0.125, 0.25, 0.0, -0.125, -0.25])
    signs = torch.tensor([1.0, 1, 1, -1, -1])
    torch.testing.assert_close(credit.advantages[:, 0], signs * outcome + steps, atol=1e-5, rtol=1e-5)
    assert torch.allclose(torch.tensor(credit.trace["step_advantage"]), steps)


def test_the_penalty_on_invalid_actions_is_added_after_the_weights(tmp_path: Path) -> None:
    batch = random_batch()
    batch.action_valid[2] = False
    teacher = scoring(batch.student_log_probs * 0.5)
    for name in (*WEIGHTED, *STATES, "sdar"):
        with_penalty = method(name, tmp_path, invalid_action_penalty=0.1).assign(batch, teacher, 0).advantages
        added = with_penalty - method(name, tmp_path).assign(batch, teacher, 0).advantages
        grpo = method("grpo", tmp_path, invalid_action_penalty=0.1).assign(batch, teacher, 0).advantages
        expected = grpo - method("grpo", tmp_path).assign(batch, teacher, 0).advantages
        torch.testing.assert_close(added, expected, atol=1e-6, rtol=1e-6)


# Documentation

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_on_methods_names_every_row_and_option() -> None:
    page = (DOCS / "baselines.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"| `{name}`" in page
        for field in dataclasses.fields(get_method(name).Options):  # ty: ignore[missing-attribute]
            assert f"`{field.name}`" in page, (name, field.name)
