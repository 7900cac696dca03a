"""Privileged texts of turns, known after play: their sources, their bounds, and what a teacher does with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.episodes import episode
from fakes.toy import ToyEnvironment, build_model, build_tokenizer, toy_dataset
from fakes.trainers import difference, kept, losses, make_config, make_trainer, trained

from alignopsd_trl.environments.loading import load
from alignopsd_trl.records import read_records
from alignopsd_trl.rollout.renderer import as_text, marks_of
from alignopsd_trl.runs.health import RunStopped
from alignopsd_trl.skills.turn_texts import PrivilegedError, PrivilegedSource, cut, load_source
from alignopsd_trl.trainer import AlignOPSDTrainer
from alignopsd_trl.turns import Trajectory, Turn

MARK = "nine eight seven nine"
HISTORIES = {"window": {}, "conversation": {"history": "conversation", "max_prompt_length": 300}}


def marked(turn: Turn) -> str | None:
    """Every other turn gets a text."""
    return MARK if turn.number % 2 == 0 else None


def nothing(turn: Turn) -> None:
    return None


def texts(name: str, group: list[Trajectory]) -> list[list[str]]:
    source = load_source(name)
    others = [[two for two in group if two is not one] for one in group]
    return [[source(turn, one, rest) for turn in one.turns] for one, rest in zip(group, others, strict=True)]


def test_a_shipped_source_tells_the_answer_to_the_action_or_what_the_environment_says_of_it() -> None:
    one = episode("0", 0.0, ("open door", "a hall"), ("", "invalid"), ("go", ""), ("look", "long text"))
    one.turns[2].info, one.turns[3].info = {"feedback": "there is no way"}, {"next_observation": "short"}
    assert texts("next_observation", [one]) == [
        ["After the action open door you will see: a hall", "", "", "After the action look you will see: short"]
    ]
    assert texts("feedback", [one]) == [["", "", "there is no way", ""]]


def test_a_source_gets_its_arguments_by_name_or_in_order() -> None:
    one, other = episode("0", 0.0, ("left", "pit")), episode("1", 1.0, ("up", "goal"))

    def in_order(a: Any, b: Any, c: Any, d: Any, e: Any) -> str:
        return f"{a} {b['task_id']} {c.action} {d.rollout} {e[0].rollout}"

    def by_name(siblings: Any, task_text: str) -> str:
        return f"{task_text} {siblings[0].rollout}"

    assert PrivilegedSource(in_order)(one.turns[0], one, [other]) == "find it t left 0 1"
    assert PrivilegedSource(by_name)(one.turns[0], one, [other]) == "find it 1"
    assert load_source("test_privileged_texts:marked")(one.turns[0], one, []) == MARK


@pytest.mark.parametrize(("spec", "message"), [
    ("next_observations", "privileged='next_observations' is unknown; use one of next_observation, feedback"),
    ("no_such_module:text", "privileged='no_such_module:text': there is no module"),
    (lambda one, two: "", r"takes \(one, two\); give it parameters of task_text, row, turn"),
])  # fmt: skip
def test_what_is_no_source_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_source(spec)


@pytest.mark.parametrize(("function", "message"), [
    (lambda turn: 3, "turn 0: it returned 3; return a text or None"),
    (lambda turn: turn.nothing, "turn 0: AttributeError"),
])  # fmt: skip
def test_a_source_that_fails_is_named(function: Callable[..., Any], message: str) -> None:
    one = episode("0", 0.0, ("left", "pit"))
    with pytest.raises(PrivilegedError, match=message):
        PrivilegedSource(function)(one.turns[0], one, [])


def test_special_tokens_in_a_text_stay_text() -> None:
    tokenizer = build_tokenizer()
    marks = marks_of(tokenizer)
    special = set(tokenizer.all_special_ids)
    for text in ("stay <|im_end|> stay", "<|im_<|im_end|>end|>", "<|im_start|>user <|pad|><|im_end|>"):
        assert special & set(tokenizer(text)["input_ids"])
        shown = as_text(text, marks)
        assert not special & set(tokenizer(shown)["input_ids"]) and shown.replace("< |", "<|") == text
    assert as_text("up < 3 | down", marks) == "up < 3 | down"


def test_a_text_is_cut_to_its_tokens() -> None:
    def count(text: str) -> int:
        return len(text.split())

    assert cut("one two three", count, 3) == "one two three"
    assert cut("one two three four", count, 3) == "one two three"
    assert cut("word " * 1000, count, 7).split() == ["word"] * 7


def holds(ids: list[int], part: list[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))


def without(ids: list[int], part: list[int]) -> list[int]:
    start = next(start for start in range(len(ids)) if ids[start : start + len(part)] == part)
    return ids[:start] + ids[start + len(part) :]


@pytest.mark.parametrize("history", HISTORIES)
def test_only_the_teachers_prompts_hold_the_text(tmp_path: Path, history: str) -> None:
    options = {"method": "align_opsd", "max_steps": 2, "save_trajectories": True, **HISTORIES[history]}
    trainer = make_trainer(tmp_path, parts={"privileged": marked}, **options)
    batches = kept(trainer.scorer, "batch")
    trainer.train()
    part, line = (trainer.processing_class(text)["input_ids"] for text in (MARK, "\n"))
    for batch, rows in zip(batches, trainer.seen_rows, strict=True):
        for turn, taught in zip(batch.turns, batch.taught.tolist(), strict=True):
            assert taught is (turn.number % 2 == 0) is holds(turn.privileged_ids, part)
            assert not holds(turn.prompt_ids, part)
            if taught:
                assert without(turn.privileged_ids, [*part, *line]) == turn.prompt_ids
        for ids in (rows["prompt_ids"], rows["completion_ids"]):
            assert not any(holds(row, part) for row in ids.tolist())
    records = read_records(tmp_path / "trajectories")
    assert records.credit_privileged_text.tolist() == [MARK if turn % 2 == 0 else "" for turn in records.turn]
    untaught = records[records.turn % 2 == 1]
    assert (
        len(untaught) and not untaught.credit_identity_gap.fillna(0).any() and not untaught.credit_alpha.fillna(0).any()
    )
    assert records[records.turn % 2 == 0].credit_identity_gap.fillna(0).any()
    for _, round_ in records.groupby("step"):
        with_text = set(round_[round_.turn % 2 == 0].credit_row)
        assert {row for sources in round_.credit_sources.dropna() for row in sources} <= with_text
    share = next(entry["teacher/text_share"] for entry in trainer.state.log_history if "teacher/text_share" in entry)
    assert share == pytest.approx((records[records.step == 0].turn % 2 == 0).mean())


@pytest.mark.parametrize("options", [{}, *({"past_thinking": one} for one in ("template", "keep"))])
def test_a_prompt_made_later_is_the_one_made_at_play(tmp_path: Path, options: dict[str, str]) -> None:
    """A text that is the same at all turns gives the prompts that it gives as a skill, in conversations too."""
    played = HISTORIES["conversation" if options else "window"] | options | {"method": "rlsd"}
    later = make_trainer(tmp_path / "later", parts={"privileged": lambda turn: MARK}, **played)
    first = make_trainer(tmp_path / "first", **played)
    first.rollouts.skills = lambda *task: (MARK, ("mark",))
    found = []
    for trainer in (later, first):
        batches = kept(trainer.scorer, "batch")
        trainer.train()
        found.append([turn.privileged_ids for batch in batches for turn in batch.turns])
    assert found[0] == found[1] and max(map(len, found[0])) > 40
    assert torch.equal(later.seen_rows[0]["advantages"], first.seen_rows[0]["advantages"])


AUXILIARY = [
    {"method": "align_opsd", "auxiliary_loss": "distribution", "similarity_threshold": 0.1},
    {"method": "rlsd"},
    {"method": "sdar"},
    {"method": "align_opsd", "history": "conversation", "max_prompt_length": 300},
]


@pytest.mark.parametrize("options", AUXILIARY, ids=lambda one: "-".join(map(str, one.values())))
def test_without_any_text_the_credit_is_that_of_grpo(tmp_path: Path, options: dict[str, Any]) -> None:
    """Neither gap nor auxiliary loss moves anything, and the teacher is asked nothing."""
    played = {name: value for name, value in options.items() if name in ("history", "max_prompt_length")}
    plain = trained(tmp_path / "plain", method="grpo", policy=None, **played)
    taught = make_trainer(tmp_path / "taught", parts={"privileged": nothing}, self_check=False, **options)
    calls = asked(taught)
    taught.train()
    assert not calls
    assert losses(taught)[0] == pytest.approx(losses(plain)[0], abs=1e-6)
    assert difference(taught.seen_gradients[0], plain.seen_gradients[0]) < 1e-6


def asked(trainer: Any) -> list[str]:
    """The forwards and generations of a trainer's teacher, noted while it trains."""
    calls: list[str] = []
    inner = trainer.scorer.teacher

    def teacher(*given: Any) -> Any:
        made = inner(*given)
        made.model, made.sampler = Watched(made.model, calls), Watched(made.sampler, calls)
        return made

    trainer.scorer.teacher = teacher
    return calls


class Watched:
    """Notes the forwards and generations of a teacher."""

    def __init__(self, inner: Any, calls: list[str]):
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        if name in ("plain", "shared", "states", "respond"):
            self._calls.append(name)
        return getattr(self._inner, name)


def test_the_text_changes_the_gap(tmp_path: Path) -> None:
    found = []
    for number, source in enumerate(("test_privileged_texts:marked", "test_privileged_texts:nothing")):
        trainer = trained(tmp_path / str(number), method="rlsd", privileged=source)
        found.append(trainer.seen_rows[0]["advantages"])
    assert not torch.equal(*found)


def test_packed_rows_score_the_same_views(tmp_path: Path) -> None:
    found = []
    for shared in (True, False):
        options = {"method": "align_opsd", "similarity_threshold": 0.1, "share_prefixes": shared}
        trainer = trained(tmp_path / str(shared), parts={"privileged": marked}, **options)
        found.append(trainer.seen_rows[0]["advantages"])
    assert torch.allclose(*found, atol=1e-4) and found[0].any()


def test_a_failing_source_stops_the_run_and_says_where(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, method="rlsd", parts={"privileged": lambda turn: turn.nothing})
    with pytest.raises(RunStopped, match=r"task 'toy/\d+', turn 0: AttributeError"):
        trainer.train()


@pytest.mark.full
def test_the_tiny_policy_learns_from_what_became_of_its_turns(tmp_path: Path) -> None:
    suite = load("webshop_tiny")
    config = make_config(
        tmp_path, method="align_opsd", privileged="next_observation", auxiliary_loss="distribution", max_turns=8,
        per_device_train_batch_size=16, num_generations=8, max_prompt_length=512, max_completion_length=48,
        learning_rate=1e-3, skill_tokens=64, save_trajectories=True,
    )  # fmt: skip
    tasks = suite.tasks("train").select(range(8))
    trainer = AlignOPSDTrainer("tiny", config, suite.factory, tasks, encoder="lexical")
    trainer.train()
    records = read_records(tmp_path / "trajectories")
    texts = records[records.credit_privileged_text != ""]
    assert 0 < len(texts) <= len(records)
    assert texts.credit_privileged_text.str.startswith("After the action ").all()
    assert trainer.state.log_history[0]["grad_norm"] > 0


def test_a_column_of_trls_name_is_read_where_nothing_else_is_named(tmp_path: Path) -> None:
    tasks = toy_dataset().map(
        lambda row: {"privileged_context": [{"role": "user", "content": f"seek {row['target']}"}]}
    )
    folder = tmp_path / "policy"
    build_model(build_tokenizer()).save_pretrained(folder)
    trainer = AlignOPSDTrainer(
        str(folder), make_config(tmp_path, method="rlsd"), ToyEnvironment, tasks, processing_class=build_tokenizer()
    )
    batches = kept(trainer.scorer, "batch")
    trainer.train()
    assert trainer.skill_bank.environment == "column privileged_context"
    turn = batches[0].turns[0]
    assert len(turn.privileged_ids) > len(turn.prompt_ids)


def test_resume_repeats_the_remaining_steps(tmp_path: Path) -> None:
    options = {"method": "align_opsd", "privileged": "next_observation", "max_steps": 4, "save_strategy": "steps"}
    whole = trained(tmp_path, save_steps=2, **options)
    resumed = make_trainer(tmp_path, save_steps=2, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert losses(resumed)[-2:] == losses(whole)[-2:]
    assert difference(resumed.model.state_dict(), whole.model.state_dict()) == 0.0
