"""Episodes that a measurement keeps: as JSON, which brings back the same values and says whose it is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from alignopsd_trl.commands.measure.kept import Cache
from alignopsd_trl.common.errors import UserError
from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.rollout.monte_carlo.replays import MCRollout
from alignopsd_trl.rollout.renderer import Shown
from alignopsd_trl.turns import Seeds, StopReason, Thought, Trajectory, Turn

VIEW = View("find it", "you see | 東京", ("go",), (Record(1, "a", "go", "b"),), 1, {"seen": (1, 2)})
TURN = Turn(0, "p", [1, 2], [], [3], "go", Thought("hm", "go"), "go", True, "a\x00wall", info={"follows": None})
EPISODE = Trajectory({"task_id": 3, "doors": [1, [2.5]]}, "3", "0", Seeds(1, 2), skill_ids=("a", "b"))


def _episode() -> Trajectory:
    turn = Turn(**vars(TURN) | {"shown": Shown(VIEW, [{"role": "user", "content": "x"}], None), "metrics": {"x": 0.1}})
    return Trajectory(**vars(EPISODE) | {"turns": [turn], "stop": StopReason.TURN_LIMIT, "won": None})


@pytest.mark.parametrize(
    "value",
    [
        [_episode(), EPISODE],
        [MCRollout(0, 3, (("go", "a wall"), ("up", "")), 0.1 + 0.2)],
        [1.0, -math.inf, 10**30, True, None],
        [{1: "a", (1, "b"): [], "dict": {"x": ()}}],
    ],
)
def test_what_was_played_comes_back_as_it_was(tmp_path: Path, value: list[Any]) -> None:
    cache = Cache(tmp_path / "parts", {"seed": 0})
    assert cache.take("played", lambda: value) is value
    again = Cache(tmp_path / "parts", {"seed": 0}).take("played", pytest.fail)
    assert again == value and repr(again) == repr(value)
    if isinstance(value[0], Trajectory):
        assert again[0].turns[0].shown == value[0].turns[0].shown and type(again[0].stop) is StopReason


class Situation:
    """Of an environment: only its code could bring it back."""


def test_what_only_code_could_bring_back_is_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache, played = Cache(tmp_path, {"seed": 0}), [[Situation()], [Situation()]]
    assert cache.take("played", lambda: played[0]) is played[0]
    assert cache.take("played", lambda: played[1]) is played[1]
    assert "played.json is not kept, since it holds a Situation" in capsys.readouterr().err


def test_no_unknown_measurement_goes_on(tmp_path: Path) -> None:
    (tmp_path / "played.json").write_text("[1]")
    with pytest.raises(ValueError, match="holds files without a whole identity.json.*choose another --output"):
        Cache(tmp_path, {"seed": 0})
    (tmp_path / "identity.json").write_text(json.dumps({"seed": 0}))
    assert Cache(tmp_path, {"seed": 0}).take("played", lambda: [1]) == [1]
    with pytest.raises(ValueError, match="seed=0, this one has 1"):
        Cache(tmp_path, {"seed": 1})
    for content in ("", "[]", "{"):
        (tmp_path / "identity.json").write_text(content)
        with pytest.raises(ValueError, match="without a whole identity.json"):
            Cache(tmp_path, {"seed": 0})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1",
        "[" * 10**5,
        "3",
        "null",
        "{}",
        '[{"Path": ["/"]}]',
        '[{"Turn": {"x": 1}}]',
        '[{"os.system": ["true"]}]',
        "[{}]",
    ],
)
def test_a_damaged_part_is_named(tmp_path: Path, content: str) -> None:
    cache = Cache(tmp_path, {"seed": 0})
    cache.take("played", lambda: [1])
    (tmp_path / "played.json").write_text(content)
    with pytest.raises(UserError, match="played.json is damaged .*; remove it, and it is played again"):
        cache.take("played", pytest.fail)
