"""What the prompts of all worlds have in common."""

from __future__ import annotations

from typing import Any

import pytest

from alignopsd_trl.environments import Opening, PlainEnvironment, ShortPrompt, Step, shortest_way
from alignopsd_trl.environments.alfworld import AlfWorldPrompt
from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.environments.searchqa import SearchQAPrompt
from alignopsd_trl.environments.webshop import WebShopPrompt

TEMPLATES = {AlfWorldPrompt: "pairs, paper, tiny", SearchQAPrompt: "paper, tiny", WebShopPrompt: "compact, paper, tiny"}
SKILL = "Look {{ twice }} at {colour} words.\nThen act."


@pytest.mark.parametrize("records", [0, 2])
@pytest.mark.parametrize(
    ("kind", "template"), [(kind, name) for kind, names in TEMPLATES.items() for name in names.split(", ")]
)
def test_a_skill_stands_after_the_task_and_an_empty_one_leaves_no_trace(kind: Any, template: str, records: int) -> None:
    history = tuple(Record(n, f"'seen {n}'", "look", "'after'") for n in range(1, records + 1))
    seen, prompt = View("put {a} pen in desk.", "'Search'", ("go to bed 1", "look"), history, records), kind(template)
    plain, skilled = prompt.render(seen), prompt.render(seen, SKILL)
    assert skilled.replace(f"{SKILL}\n", "") == plain
    assert "\n\n\n" not in plain or (kind is SearchQAPrompt and records), "an empty line ends its memory"
    assert skilled.splitlines()[template != "compact" :][:2] == SKILL.splitlines()


@pytest.mark.parametrize("kind", TEMPLATES)
def test_an_unknown_template_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"template 'huge' is unknown; use one of {TEMPLATES[kind]} or a file"):
        kind("huge")


def test_the_short_prompt_names_the_form_of_an_answer() -> None:
    seen = View("Guess.", "Higher.", ("[1]", "[2]"), (), 0)
    asked = ShortPrompt(offers=True, form="[number]").render(seen)[-1]["content"].splitlines()
    assert asked[:-1] == ShortPrompt(offers=True).render(seen)[-1]["content"].splitlines()
    assert asked[-1].endswith("<action>[number]</action>")


def place_of(one: Any) -> int:
    return one.place


class Line(PlainEnvironment):
    """A place on a line; the goal is two steps to the right."""

    def reset(self, **row: Any) -> Opening:
        self.place = 0
        return Opening("", "")

    def step(self, action: str) -> Step:
        self.place += {"left": -1, "right": 1}.get(action, 0)
        return Step("", won=self.place == 2, done=self.place == -1, valid=action in ("left", "right"))


def test_the_shortest_way_is_found_and_leaves_its_start_as_it_is() -> None:
    start = Line()
    start.reset()
    assert shortest_way(start, ["up", "left", "right"], place_of) == ("right", "right")
    assert start.place == 0
    assert shortest_way(start, ["left", "up"], place_of) is None
