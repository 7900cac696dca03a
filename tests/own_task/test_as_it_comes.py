"""A model is asked as it comes: what its play says, and what follows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launching import TESTS, run_script

from alignopsd_trl.commands.own_task import as_it_comes as asked
from alignopsd_trl.commands.own_task.as_it_comes import (
    CUT,
    FORM,
    PLAYS,
    READS,
    UNREAD,
    UNSURE,
    WEAK,
    Verdict,
    as_it_comes,
    verdict,
)
from alignopsd_trl.commands.own_task.options import WarmStartConfig

TASKS = 16


def _played(won: int, valid: bool = True, truncated: bool = False, score: float | None = None) -> list[Any]:
    turn = SimpleNamespace(action_valid=valid, truncated=truncated, response_text="the answer\nis five")
    return [
        SimpleNamespace(
            row={"task_id": f"sums/{n}"},
            turns=[turn],
            won=None if score is not None else n < won,
            score=score or 0.0,
            skill_text="Add the tens first.",
        )
        for n in range(TASKS)
    ]


@pytest.mark.parametrize(
    ("plain", "skilled", "kind", "words"),
    [
        (_played(4), _played(14), READS, "88% won with the text and 25% without it (+62%"),
        (_played(0), _played(5), WEAK, "reward leads further"),
        (_played(0), _played(0), UNREAD, "sums/0: it read 'Add the tens first.' and ended with 'the answer is five'"),
        (_played(8), _played(8), UNREAD, "write a text"),
        (_played(15), _played(16), PLAYS, "little left to learn"),
        (_played(3), None, PLAYS, "19% won; the task has no privileged text"),
        (_played(0, valid=False), _played(0, valid=False), FORM, "32 of 32 responses hold no action"),
        (_played(0, valid=False, truncated=True), _played(0, valid=False), FORM, "can't play the form"),
        (_played(0, False, True), _played(0, False, True), CUT, "max_completion_length=96: raise it"),
        (_played(0, score=0.2), _played(0, score=0.7), READS, "70% won with the text"),
    ],
)
def test_a_models_play_says_what_follows(plain: list[Any], skilled: list[Any] | None, kind: str, words: str) -> None:
    found = verdict(plain, skilled, thinks=True, most=96)
    assert (found.kind, words in found.text) == (kind, True), found.text
    assert found.settings == ({"method": "grpo"} if kind == WEAK else {})


def test_a_few_tasks_that_do_not_tell_end_no_run() -> None:
    skilled = [*_played(0)[:8], *_played(16)[8:]]
    assert verdict(_played(8), skilled).kind == UNSURE
    cut = _played(0, valid=False, truncated=True)
    assert verdict(cut, cut).kind == FORM  # of a model that does not think no limit is too short
    assert verdict(_played(8), _played(8), teaches=False).kind == UNSURE  # reward alone needs no text


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    found: list[Verdict] = []
    monkeypatch.setattr(asked, "_asked", lambda *given: found[0])
    return found


PRESET = {"model_name_or_path": "a_model", "method": "align_opsd"}
START = WarmStartConfig()


def test_settings_follow_from_the_answer_unless_the_method_is_named(answers: list[Verdict], tmp_path: Path) -> None:
    answers.append(Verdict(WEAK, "", {"method": "grpo"}))
    assert as_it_comes("sums", PRESET, tmp_path, [], config=START)["method"] == "grpo"
    assert as_it_comes("sums", PRESET, tmp_path, ["--method", "align_opsd"], config=START) == PRESET


@pytest.mark.parametrize(
    ("kind", "argv", "ends"), [(UNREAD, [], True), (UNREAD, ["--method=grpo"], False), (CUT, [], True)]
)
def test_a_run_that_would_teach_nothing_ends(
    answers: list[Verdict], tmp_path: Path, kind: str, argv: list[str], ends: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.append(Verdict(kind, "here is where it lost"))
    if ends:
        with pytest.raises(ValueError, match="would teach nothing"):
            as_it_comes("sums", PRESET, tmp_path, argv, config=START)
    else:
        assert as_it_comes("sums", PRESET, tmp_path, argv, config=START) == PRESET
    assert "here is where it lost" in capsys.readouterr().out


def test_a_warm_start_is_made_only_where_the_form_cannot_be_played(
    answers: list[Verdict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(asked, "first_policy", lambda *given, **more: made.append((given[1], more["skilled_share"])))
    answers.append(Verdict(READS, ""))
    as_it_comes("sums", PRESET, tmp_path, [], config=START, skilled_share=1.0)
    assert not made
    answers[0] = Verdict(FORM, "")
    found = as_it_comes("sums", PRESET, tmp_path, [], config=START, skilled_share=1.0)
    assert made == [(tmp_path, 1.0)] and found["model_name_or_path"] == str(tmp_path)


def test_a_recipe_of_4_bits_asks_the_model_in_4_bits(maze: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(name: str, dtype: str, device: str, quantization: Any = None) -> Any:
        loaded.append(quantization)
        raise ValueError("it is asked")

    monkeypatch.setattr("alignopsd_trl.checks.loading.load_policy", load)
    monkeypatch.setattr("alignopsd_trl.checks.loading.find_spec", lambda name: name)
    monkeypatch.setattr("trl.get_quantization_config", lambda model: {"load_in_4bit": model.load_in_4bit})
    preset = {"environment": "maze", "model_name_or_path": "tiny", "num_generations": 2}
    preset |= {"load_in_4bit": True, "use_peft": True, "dtype": "float32"}
    with pytest.raises(ValueError, match="it is asked"):
        as_it_comes("maze", preset, maze / "policy", ["--use_cpu"], config=START)
    assert loaded == [{"load_in_4bit": True}]


@pytest.mark.parametrize("flag", ["--plan", "--model", "--help"])
def test_nothing_is_asked_where_nothing_of_this_model_is_trained(flag: str, tmp_path: Path) -> None:
    assert as_it_comes("sums", PRESET, tmp_path, [flag], config=START) == PRESET


def test_a_policy_that_was_warm_started_is_not_asked_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert as_it_comes("sums", PRESET, tmp_path, [], config=START) == PRESET


@pytest.mark.full
@pytest.mark.parametrize(("play", "found"), [("plays", "grpo"), ("fails", "no model is here")])
def test_the_first_of_two_processes_asks_and_both_do_as_it_finds(play: str, found: str, tmp_path: Path) -> None:
    said = run_script(TESTS / "asked_by_two.py", tmp_path, play, processes=2)
    assert [(tmp_path / rank).read_text() for rank in "01"] == [found] * 2
    assert said.count("it reads, little") == (play == "plays")
