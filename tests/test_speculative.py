"""Sampling with guesses against sampling token by token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from fakes.models import CONFIGS, SHAPE
from transformers import AutoModelForCausalLM

from alignopsd_trl.fidelity import speculative
from alignopsd_trl.fidelity.speculative import AHEAD, Guesses
from alignopsd_trl.policy.decoding import draw_at
from alignopsd_trl.policy.packing import PROVEN
from alignopsd_trl.policy.prefix_cache import PrefixCache

PROMPTS = [[5, 6, 7, 8, 9], [11], [5, 6, 7, 8, 9], [4, 4, 12, 30, 31, 32, 33, 20], [40, 41], [11]]
LIMIT, ENDS, TEMPERATURE = 14, list(range(3, 53, 9)), 0.4


class Wrong(Guesses):
    """Guesses as many tokens as it may, hardly ever right ones, and sometimes an end."""

    def after(self, written: Sequence[int]) -> list[int]:
        return [(7 * len(written) + place) % 50 for place in range(len(written) % (AHEAD + 1))]


def _model(kind: str, attention: str = "sdpa") -> torch.nn.Module:
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(CONFIGS[kind](**SHAPE), attn_implementation=attention).eval()


def _sample(model: torch.nn.Module, prefixes: PrefixCache, guesses: Guesses, seed: int, attention: str = "sdpa"):
    torch.manual_seed(seed)
    return speculative.sample(
        model,
        PROMPTS,
        temperature=TEMPERATURE,
        max_tokens=LIMIT,
        end_ids=ENDS,
        pad_id=0,
        attention=attention,
        prefixes=prefixes,
        guesses=guesses,
    )


def _one_by_one(model: torch.nn.Module, seed: int) -> list[list[int]]:
    torch.manual_seed(seed)
    responses = []
    for prompt, numbers in zip(PROMPTS, torch.rand((len(PROMPTS), LIMIT), dtype=torch.float64), strict=True):
        response: list[int] = []
        while len(response) < LIMIT and (not response or response[-1] not in ENDS):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + response])).logits[:, -1]
            response += draw_at((logits / TEMPERATURE).log_softmax(-1), numbers[len(response)][None]).tolist()
        responses.append(response)
    return responses


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PROVEN)
def test_responses_do_not_depend_on_what_was_guessed(kind: str, attention: str) -> None:
    model = _model(kind, attention)
    prefixes, learned = PrefixCache(model, 0, attention), Guesses()
    for seed in (0, 1, 0):
        expected = _one_by_one(model, seed)
        assert _sample(model, prefixes, learned, seed, attention) == expected
        assert _sample(model, prefixes, Wrong(), seed, attention) == expected
        assert len({len(response) for response in expected}) > 1


def test_what_was_said_before_takes_few_forwards() -> None:
    model, learned, forwards = _model("qwen2"), Guesses(), []
    prefixes = PrefixCache(model, 0)
    responses = _sample(model, prefixes, learned, 5)
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    again = Guesses()
    for response in responses:
        again.learn(response)
    assert _sample(model, prefixes, again, 5) == responses
    assert len(forwards) < max(map(len, responses)) / 2


def test_a_policy_that_cannot_be_guessed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "TRIAL", 10)
    guesses, begin = Guesses(), list(speculative.BEGIN)
    guesses.learn([1, 2, 3])
    guesses.count(11, 3)
    assert guesses.after(begin) == [1, 2, 3]
    guesses.count(11, 0)
    assert guesses.after(begin) == []
    model, wrong = _model("qwen2"), Wrong()
    _sample(model, PrefixCache(model, 0), wrong, 0)
    wrong.learn([1, 2, 3])
    assert Guesses.after(wrong, begin) == [], "sampling counts"


def test_guesses_follow_the_latest_response_and_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    guesses, begin = Guesses(), list(speculative.BEGIN)
    assert guesses.after(begin) == []
    guesses.learn([1, 2, 3, 4, 5, 6, 7, 8])
    guesses.learn([9, 2, 3, 4, 10])
    assert guesses.after(begin) == [9, 2, 3, 4]
    assert guesses.after([*begin, 1, 2, 3, 4]) == [5, 6, 7, 8], "the longer beginning says more"
    assert guesses.after([*begin, 2, 3, 4]) == [10]
    monkeypatch.setattr(speculative, "MOST", 5)
    guesses.learn([20])
    assert guesses.after([*begin, 2, 3, 4]) == [] and guesses.after(begin) == [20]
