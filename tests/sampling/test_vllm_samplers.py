"""The colocated engine as a sampler, with a stand-in for the engine; `.ci/vllm` runs the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.playing import play_rows
from fakes.toy import ToyEnvironment, build_tokenizer, toy_dataset, toy_response

from alignopsd_trl.environments.base import EnvironmentsDown, Step
from alignopsd_trl.experimental.trl_colocated import SteppingSampler
from alignopsd_trl.rollout.sampler import Request, RequestFailed, Response
from alignopsd_trl.turns import Trajectory


class Engine:
    """Has room for some requests at once; each step makes a token of each of them.

    Attributes:
        steps: so far.
        most: requests that were in it at once.
    """

    def __init__(self, room: int = 256):
        self.room, self.steps, self.most = room, 0, 0
        self.requests: dict[str, list[int]] = {}
        self.adapters: list[Any] = []
        self._left: dict[str, int] = {}
        self._tokenizer = build_tokenizer()

    def add_request(self, name: str, prompt: dict[str, list[int]], seed: int, lora_request: Any) -> None:
        if len(prompt["prompt_token_ids"]) > 500:
            raise LookupError("the prompt is too long")
        self.adapters.append(lora_request)
        self.requests[name] = toy_response(self._tokenizer, [*prompt["prompt_token_ids"], seed])
        self._left[name] = len(self.requests[name])
        self.most = max(self.most, len(self.requests))

    def step(self) -> list[Any]:
        self.steps += 1
        outputs = []
        for name in list(self.requests)[: self.room]:
            self._left[name] -= 1
            outputs.append(SimpleNamespace(request_id=name, finished=not self._left[name], ids=self.requests[name]))
            if not self._left[name]:
                del self.requests[name]
        return outputs

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.requests[name]


def sampler(engine: Engine) -> SteppingSampler:
    return SteppingSampler(engine, lambda seed: seed, lambda output: Response(output.ids, [-1.0] * len(output.ids)))


def play(engine: Engine, factory: Any = ToyEnvironment) -> list[Trajectory]:
    rows = [row for row in toy_dataset(6) for _ in range(3)]
    return play_rows(factory, rows, build_tokenizer(), [sampler(engine)])


def test_episodes_are_the_same_however_many_the_engine_has_at_once() -> None:
    roomy, narrow = Engine(), Engine(room=2)
    found, again = play(roomy), play(narrow)
    assert [[turn.response_ids for turn in one.turns] for one in found] == [
        [turn.response_ids for turn in one.turns] for one in again
    ]
    assert roomy.steps < narrow.steps and roomy.most > 2
    assert found[0].turns[0].sampling_log_probs == [-1.0] * len(found[0].turns[0].response_ids)


def test_an_error_leaves_nothing_in_the_engine() -> None:
    class Down(ToyEnvironment):
        def step(self, action: str) -> Step:
            raise EnvironmentsDown("gone")

    engine = Engine()
    with pytest.raises(EnvironmentsDown):
        play(engine, Down)
    assert engine.most > 1 and not engine.requests


def test_a_request_that_the_engine_refuses_fails_alone() -> None:
    engine = sampler(Engine())
    wrong, right = engine.submit(Request([5] * 501, 1)), engine.submit(Request([5], 1))
    while engine.advance():
        pass
    with pytest.raises(RequestFailed, match="vLLM refused the request: the prompt is too long"):
        wrong.result()
    assert right.result().ids and engine.waiting == 0


def test_policy_and_teacher_are_asked_side_by_side() -> None:
    engine = Engine()
    asked: Any = {}
    policy, teacher = (
        SteppingSampler(engine, lambda seed: seed, lambda output: Response(output.ids, None), one, asked)
        for one in ("adapter-3", "adapter-4")
    )
    teacher = teacher.instead(None)
    futures = [one.submit(Request([5, 6, number], number)) for number in range(3) for one in (policy, teacher)]
    assert engine.adapters == ["adapter-3", None] * 3 and policy.waiting == 6
    while policy.advance():
        pass
    assert all(future.done() for future in futures), "a step of either fulfils the requests of both"
    policy.drop()
    teacher.drop()
