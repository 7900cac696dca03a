"""What the player makes of an environment: when an episode ends, what it is worth, and what a bad one costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.plays import play_with
from fakes.toy import Scripted, ToyEnvironment, ToyPrompt, build_tokenizer

from alignopsd_trl.environments import Ending, Opening, Projection, Step, TextEnvironment
from alignopsd_trl.rollout.metrics import rollout_metrics
from alignopsd_trl.turns import StopReason, Trajectory

TOKENIZER = build_tokenizer()


class Corridor(TextEnvironment):
    """As long as it is asked to be; only the end knows what it was worth."""

    prompt = ToyPrompt()
    max_turns = 4

    def reset(self, length: int, **columns: object) -> Opening:
        self._length, self._walked, self.finished = length, 0, 0
        return Opening("zero", "go")

    def step(self, action: str) -> Step:
        self._walked += 1
        return Step("one", reward=0.25, done=self._walked == self._length, metrics={"walked": self._walked})

    def project(self, response: str, admissible: object = None) -> Projection:
        return Projection(response, True)

    def finish(self) -> Ending:
        self.finished += 1
        assert self.finished == 1, "asked twice"
        return Ending(reward=1.0, won=self._walked == 4, score=self._walked / 10, metrics={"asked": 1})


def play(factory: type, rows: list[dict], max_turns: int | None = None) -> list[Trajectory]:
    response = TOKENIZER("left", add_special_tokens=False)["input_ids"] + [TOKENIZER.eos_token_id]
    sampler = Scripted(lambda prompts: ([list(response) for _ in prompts], None))
    return play_with(sampler, factory, rows, TOKENIZER, max_turns=max_turns)


def rows(*lengths: int) -> list[dict]:
    return [{"task_id": f"c/{number}", "length": length} for number, length in enumerate(lengths)]


def test_only_the_player_ends_an_episode_at_the_turn_limit() -> None:
    played = play(Corridor, rows(2, 4, 9))
    assert [one.stop for one in played] == [StopReason.DONE, StopReason.DONE, StopReason.TURN_LIMIT]
    assert [len(one.turns) for one in played] == [2, 4, 4]
    assert rollout_metrics(played)["stop/turn_limit"] == pytest.approx(1 / 3)
    assert [one.stop for one in play(Corridor, rows(2, 4), max_turns=1)] == [StopReason.TURN_LIMIT] * 2


class Numbered(Corridor):
    def step(self, action: str) -> Step:
        return replace(super().step(action), observation="zero one two three four".split()[self._walked])


def test_an_action_counts_as_repeated_where_it_led_to_the_same() -> None:
    assert rollout_metrics(play(Corridor, rows(2, 4, 9)))["turns/repeated"] == pytest.approx(7 / 10)
    assert rollout_metrics(play(Numbered, rows(2, 4, 9)))["turns/repeated"] == 0
    assert rollout_metrics([])["turns/repeated"] == 0


def test_a_limit_above_the_environments_own_is_refused() -> None:
    with pytest.raises(ValueError, match="max_turns=5 is more than the 4 of environment Corridor.*environment_options"):
        play(Corridor, rows(1), max_turns=5)


def test_what_is_known_only_at_the_end_reaches_the_trajectory() -> None:
    short, full, cut = play(Corridor, rows(2, 4, 9))
    assert [one.reward for one in (short, full, cut)] == [1.5, 2.0, 2.0]
    assert [sum(turn.reward for turn in one.turns) for one in (short, full, cut)] == [1.5, 2.0, 2.0]
    assert [one.won for one in (short, full, cut)] == [False, True, True]
    assert [one.score for one in (short, full, cut)] == [0.2, 0.4, 0.4]
    assert cut.turns[-1].info == {"walked": 4, "asked": 1} and cut.turns[0].info == {"walked": 1}
    assert rollout_metrics([short, cut])["last_step/walked"] == 3


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("reset", "reset() returned the str 'zero'; return environments.Opening("),
        ("step", "Step.reward is nan, which is not finite"),
        ("project", "project() returned None; return environments.Projection("),
        ("raise", "KeyError: 'door' (test_rollout.py, line "),
    ],
)
def test_a_bad_value_costs_its_episode_and_is_named_with_environment_and_task(part: str, message: str) -> None:
    class Broken(Corridor):
        def reset(self, task_id: str, **columns: object) -> Opening:
            self._bad = task_id == "c/1"
            opening = super().reset(**columns)
            return "zero" if self._bad and part == "reset" else opening  # ty: ignore[invalid-explicit-return]

        def step(self, action: str) -> Step:
            if self._bad and part == "raise":
                raise KeyError("door")
            return Step("one", reward=float("nan") if self._bad and part == "step" else 0.0)

        def finish(self) -> None:
            return None

    if part == "project":
        Broken.project = lambda self, response, admissible=None: None  # type: ignore[method-assign]
    first, second = play(Broken, rows(9, 9))
    assert second.stop is StopReason.ENVIRONMENT_ERROR and second.message.startswith(
        "error: environment Broken, task 'c/1': " + message
    )
    assert first.failed == (part == "project")
    if part != "reset":
        assert len(second.turns) == 1, "the turn that it failed in is on record"


def test_an_environment_that_says_nothing_at_the_end_keeps_what_its_steps_said() -> None:
    (one,) = play(ToyEnvironment, [{"task_id": "toy/3", "target": "three"}])
    assert one.reward == one.turns[-1].reward and not one.failed
