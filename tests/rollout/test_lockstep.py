"""Episodes that take each turn together are what they were when the player knew no other way."""

from __future__ import annotations

import json

import pytest
from fakes.lockstep_cases import CASES, GOLDEN, digests

CAPTURED = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_tokens_rewards_and_records_are_those_captured(name: str) -> None:
    for found, captured in zip(digests(CASES[name]()), CAPTURED[name], strict=True):
        assert found[:-1] == captured[:-1]
        assert found[-1] == pytest.approx(captured[-1], abs=2e-5)
