"""The policies that read texts of turns: their further tokens, their players, and the text of a whole sibling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from alignopsd_trl.turns import NO_THOUGHT, Trajectory, Turn
from research.turn_texts import PHRASES, PLAYERS, of_texts, start, whole_sibling


def _episode(reward: float, *actions: str) -> Trajectory:
    turns = [Turn(number, "", [], [], [], "", NO_THOUGHT, one, True, "") for number, one in enumerate(actions)]
    return Trajectory({"task_id": "t"}, "t", "0", turns=turns, reward=reward)


def test_a_whole_sibling_is_told_where_it_ended_better() -> None:
    own, better = _episode(0.0, "go"), _episode(1.0, "look", "take")
    assert whole_sibling(own, [_episode(0.5, "wait"), better]) == "A better attempt did: look , take"
    assert whole_sibling(better, [own]) is None and whole_sibling(own, []) is None


@pytest.mark.parametrize("name", PLAYERS)
def test_each_world_has_a_player_and_a_policy_to_start_from(name: str, tmp_path: Path) -> None:
    rows = of_texts(name, "next_observation", episodes=32, seed=0)
    assert all("After the action " in row["prompt"][0]["content"] for row in rows)
    tokenizer: Any = AutoTokenizer.from_pretrained(start(name, tmp_path))
    said = f"{PHRASES[0]}x{PHRASES[1]}y"
    ids = tokenizer(said, add_special_tokens=False)["input_ids"]
    assert len(ids) <= 10 and tokenizer.decode(ids) == said
