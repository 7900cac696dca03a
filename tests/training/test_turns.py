from __future__ import annotations

import re

import torch
from fakes.toy import Scripted
from hypothesis import given
from hypothesis import strategies as st

from alignopsd_trl.rollout.reading import parse_response
from alignopsd_trl.rollout.sampler import SortedByLength
from alignopsd_trl.turns import StopReason, Thought, Trajectory, Turn, TurnBatch

PIECES = ["<think>", "</think>", "<action>", "</action>", "<ANSWER x>", "</answer >", "<search", ">", "<", "a", "\n"]


def _reference(tag: str, text: str) -> str | None:
    found = re.search(rf"<{tag}\b[^>]*>(.*?)</{tag}\s*>", text, re.IGNORECASE | re.DOTALL)
    return found.group(1).strip() if found else None


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_parsing_is_the_first_complete_block(text: str) -> None:
    thought = parse_response(text)
    assert thought.thinking == (_reference("think", text) or "")
    actions = [body for tag in ("action", "search", "answer") if (body := _reference(tag, text)) is not None]
    assert thought.action == (actions[0] if actions else "")


@given(st.text(max_size=200))
def test_any_text_is_legal(text: str) -> None:
    parse_response(text)


def test_long_and_missing_responses() -> None:
    assert parse_response("<think>" * 15_000) == Thought("", "")
    assert parse_response("思考 <think>字</think><action>x</action>") == Thought("字", "x")
    assert parse_response(None) == Thought("", "") and not parse_response("<action> </action>").action_valid


def _turn(number: int, ids: list[int]) -> Turn:
    return Turn(number, "", [1], [1], ids, "", Thought("", ""), "", True, "")


def test_batch_is_in_canonical_order_and_leaves_failed_trajectories_out() -> None:
    played = [
        Trajectory({}, "b", "r2", turns=[_turn(0, [5])], reward=1.0),
        Trajectory({}, "a", "r10", turns=[_turn(0, [6, 7]), _turn(1, [8])], reward=0.5),
        Trajectory({}, "b", "r10", turns=[_turn(0, [9])], stop=StopReason.ENVIRONMENT_ERROR),
        Trajectory({}, "a", "r2", turns=[_turn(0, [3])], reward=0.0),
    ]
    batch = TurnBatch.of(played, pad_id=0)
    assert batch.response_ids.tolist() == [[6, 7], [8, 0], [3, 0], [5, 0]]
    assert batch.policy_mask.sum(1).tolist() == [2, 1, 1, 1]
    assert batch.task.tolist() == [0, 0, 0, 1] and batch.rollout.tolist() == [0, 0, 1, 2]
    assert batch.reward.tolist() == [0.5, 0.5, 0.0, 1.0]
    empty = TurnBatch.of([], pad_id=0)
    assert len(empty) == 0 and empty.response_ids.shape == (0, 1) and empty.reward.dtype == torch.float32


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 7))
def test_sorted_generation_answers_every_prompt_in_its_place(lengths: list[int], size: int) -> None:
    prompts = [[number] * length for number, length in enumerate(lengths)]
    calls: list[list[int]] = []

    def generate(part: list[list[int]]) -> tuple[list[list[int]], None]:
        calls.append([len(prompt) for prompt in part])
        return [[prompt[0], len(prompt)] for prompt in part], None

    responses, log_probs = SortedByLength(Scripted(generate), lambda asked: size).respond(prompts)
    assert responses == [[number, length] for number, length in enumerate(lengths)] and log_probs is None
    assert [length for call in calls for length in call] == sorted(lengths)
    assert len(calls) == -(-len(lengths) // size) and all(len(call) <= size for call in calls)
