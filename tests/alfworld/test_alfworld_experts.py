from __future__ import annotations

import pytest

from alignopsd_trl.environments.alfworld import Explorer
from alignopsd_trl.environments.alfworld.player import Memory, ParsedTask


@pytest.mark.parametrize(
    ("sentence", "goal"),
    [
        ("put a mug in desk.", ParsedTask("mug", "desk")),
        ("put some soapbar on toilet.", ParsedTask("soapbar", "toilet")),
        ("put a clean mug in desk.", ParsedTask("mug", "desk", verb="clean")),
        ("clean some mug and put it in desk.", ParsedTask("mug", "desk", verb="clean")),
        ("put a hot egg in fridge.", ParsedTask("egg", "fridge", verb="heat")),
        ("heat some egg and put it in fridge.", ParsedTask("egg", "fridge", verb="heat")),
        ("put a cool pan in stoveburner.", ParsedTask("pan", "stoveburner", verb="cool")),
        ("cool some pan and put it in stoveburner.", ParsedTask("pan", "stoveburner", verb="cool")),
        ("put two cd in safe.", ParsedTask("cd", "safe", count=2)),
        ("find two cd and put them in safe.", ParsedTask("cd", "safe", count=2)),
        ("look at bowl under the desklamp.", ParsedTask("bowl", lamp="desklamp")),
        ("examine the bowl with the floorlamp.", ParsedTask("bowl", lamp="floorlamp")),
    ],
)
def test_every_wording_is_understood(sentence, goal):
    assert ParsedTask.parse(sentence) == goal


def test_an_unknown_wording_is_refused():
    with pytest.raises(ValueError, match="none of ALFWorld's known wordings"):
        ParsedTask.parse("juggle three eggs.")


def test_memory_follows_the_texts():
    memory = Memory()
    memory.read("You arrive at desk 1. On the desk 1, you see a pen 2, a pen 1, and a mug 1.")
    memory.read("You arrive at drawer 1. The drawer 1 is closed.")
    assert memory.where("pen") == [("pen 2", "desk 1"), ("pen 1", "desk 1")] and memory.closed == {"drawer 1"}
    memory.read("You open the drawer 1. The drawer 1 is open. In it, you see nothing.")
    memory.read("You pick up the pen 2 from the desk 1.")
    assert (memory.holding, memory.origin, memory.closed) == ("pen 2", "desk 1", set())
    memory.read("You heat the pen 2 using the microwave 1.")
    memory.read("You clean the pen 2 using the sinkbasin 1.")
    assert memory.state == {"pen 2": {"heat", "clean"}}
    memory.read("You cool the pen 2 using the fridge 1.")
    assert memory.state == {"pen 2": {"cool", "clean"}}
    memory.read("You move the pen 2 to the drawer 1.")
    assert memory.holding == "" and memory.contents == {"desk 1": ["pen 1", "mug 1"], "drawer 1": ["pen 2"]}


def test_what_stands_here_already_is_examined_and_not_gone_to():
    explorer = Explorer()
    explorer.begin(
        "You are in the middle of a room. Looking quickly around you, you see a desk 1.", "put a pen in desk."
    )
    assert explorer.act("", ["examine desk 1", "go to bed 1"]) == "examine desk 1"


def test_error_rate_must_be_a_probability():
    with pytest.raises(ValueError, match="error_rate=2 must be between 0 and 1"):
        Explorer(2)
