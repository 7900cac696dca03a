"""Golden vectors of the scorer and of the response rules; the folder comes from ALIGNOPSD_SEARCHQA_FIXTURES."""

from __future__ import annotations

from typing import Any

import pytest
from searchqa_helpers import cases

from alignopsd_trl.environments.searchqa.engine.actions import project_agent_loop, project_search_r1, read_action
from alignopsd_trl.environments.searchqa.engine.scoring import accepted, contains_match, exact_match, normalise


@pytest.mark.parametrize("case", cases("em_cases*.json", "cases"))
def test_exact_match(case: dict[str, Any]) -> None:
    answer, strict, golden = case["extracted"], case["extracted_strict"], case["golden_answers"]
    assert exact_match(answer, golden) == case["em"]
    assert exact_match(strict, golden) == case["em_strict"]
    assert contains_match(answer, golden) == case["sub_em"]
    assert (None if answer is None else normalise(answer)) == case["normalised_prediction"]
    assert [normalise(text) for text in accepted(golden)] == case["normalised_golden"]


@pytest.mark.parametrize("case", cases("response_cases*.json", "cases"))
def test_response_to_action(case: dict[str, Any]) -> None:
    found = project_agent_loop(case["response"])
    assert {"action": found.action, "valid": found.valid} == case["agent_loop"]
    original = project_search_r1(case["response"])
    action = read_action(original.action)
    assert {"kind": action.kind or None, "content": action.text} == case["search_r1"]
    assert original.valid == (case["search_r1"]["kind"] is not None)


def test_an_empty_list_of_answers_never_matches() -> None:
    assert exact_match("", []) == 0.0
    assert contains_match("a", []) == 0.0
