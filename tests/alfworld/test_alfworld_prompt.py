from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import alignopsd_trl.environments.alfworld as alfworld
from alignopsd_trl.environments.alfworld import AlfWorldPrompt, project
from alignopsd_trl.environments.alfworld.engine.categories import parse_task_type, task_type_of
from alignopsd_trl.environments.alfworld.prompt import TEMPLATES, VALIDITY, task_text
from alignopsd_trl.environments.base import Record, View

FIRST = "-= Welcome =-\n\nYou see a bed 1, and a desk 1.\n\nYour task is to: put a pen in desk."
ADMISSIBLE = ("go to bed 1", "go to desk 1", "help", "inventory", "look")
INSTRUCTION = """\
Your admissible actions of the current situation are: ['go to bed 1'
 'go to desk 1'
 'inventory'
 'look'].

Now it's your turn to take an action.
You should first reason step-by-step about the current situation. This reasoning process MUST be enclosed within <think> </think> tags.
Once you've finished your reasoning, you should choose an admissible action for current step and present it within <action> </action> tags."""  # noqa: E501


def view(history=(), steps=0, observation=FIRST):
    return View("put a pen in desk.", observation, ADMISSIBLE, tuple(history), steps)


def test_first_turn_has_no_history_clause():
    assert AlfWorldPrompt().render(view()) == (
        "You are an expert agent operating in the ALFRED Embodied Environment. Your task is to: put a pen in desk.\n"
        f"You are now at step 1 and your current observation is: {FIRST}\n" + INSTRUCTION
    )


def test_later_turns_show_the_last_records_and_count_over_the_whole_episode():
    records = [Record(4, "On the bed 1, you see a pen 1.", "take pen 1 from bed 1", "x"), Record(5, "y", "look", "z")]
    assert AlfWorldPrompt().render(view(records, 5, "z")) == (
        "You are an expert agent operating in the ALFRED Embodied Environment. Your task is to: put a pen in desk.\n"
        "Prior to this step, you have already taken 5 step(s). Below are the most recent 2 observations and the "
        "corresponding actions you took: [Observation 4: 'On the bed 1, you see a pen 1.', "
        "Action 4: 'take pen 1 from bed 1']\n[Observation 5: 'y', Action 5: 'look']\n"
        "You are now at step 6 and your current observation is: z\n" + INSTRUCTION
    )


def test_the_template_names_its_source():
    assert "Source: AlignOPSD" in TEMPLATES["paper"].read_text()
    assert "Source" not in AlfWorldPrompt().render(view())


def test_the_tiny_template_shows_each_result_once_and_no_command_on_things_in_sight():
    records = [Record(1, FIRST, "go to bed 1", "On the bed 1, you see a pen 1."), Record(2, "x", "look", "Nothing.")]
    assert AlfWorldPrompt("tiny").render(view(records, 2, "Nothing."), "Look twice.") == (
        "Task: put a pen in desk.\nLook twice.\n> go to bed 1\nOn the bed 1, you see a pen 1.\n> look\nNow: Nothing.\n"
        "Actions: go to bed 1, go to desk 1"
    )


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        ("<think>hm</think><action>Go To Bed 1</action>", "go to bed 1", True),
        ("<think>hm</think>\n<action>\n look \n</action> bye", "look", True),
        ("<think>hm</think><action>fly to the moon</action>", "fly to the moon", True),
        ("<THINK>hm</THINK><ACTION>look</ACTION>", "look", False),
        ("<think>hm</think><ACTION>look</ACTION>", "look", True),
        ("<action>look</action>", "look", False),
        ("</think><think><action>look</action>", "look", True),
        ("<think>一</think><action>look</action>", "look", False),
        ("<think>\u9fff</think><action>look</action>", "look", False),
        ("<think>\u3400 か \ua000</think><action>look</action>", "look", True),
        ("<think>hm</think><action>a</action><action>b</action>", "a", True),
        ("<think>hm</think></action><action>look", "", True),
        ("<think>hm</think><action>look", "<think>hm</think><action>look"[-30:], False),
        ("THE LAST THIRTY CHARACTERS OF A LONG ANSWER COUNT", "haracters of a long answer count"[-30:], False),
        ("", "", False),
    ],
)
def test_projection_follows_the_authors_rule(response, action, valid):
    projection = project(response)
    assert (projection.action, projection.valid) == (action, valid)


def test_the_admissible_rule_asks_for_membership_on_top():
    good, other = (f"<think>.</think><action>{action}</action>" for action in ("look", "dance"))
    assert project(good, "admissible", ADMISSIBLE).valid
    assert (
        not project(other, "admissible", ADMISSIBLE).valid
        and project(other, "admissible", ADMISSIBLE).action == "dance"
    )
    assert not project("<action>look</action>", "admissible", ADMISSIBLE).valid
    with pytest.raises(ValueError, match="needs the turn's admissible commands"):
        project(good, "admissible")
    with pytest.raises(ValueError, match="'strict' is unknown"):
        project(good, "strict")


def test_the_environment_uses_the_rule_of_its_settings():
    strict = alfworld.AlfWorldEnvironment(alfworld.AlfWorldOptions(validity="admissible"))
    response = "<think>.</think><action>dance</action>"
    assert not strict.project(response, ADMISSIBLE).valid
    assert alfworld.AlfWorldEnvironment().project(response).valid
    with pytest.raises(ValueError, match="needs the turn's admissible"):
        strict.project(response)


@given(st.text())
def test_projection_never_raises(response):
    for validity in VALIDITY:
        assert isinstance(project(response, validity, ADMISSIBLE).action, str)


def test_projection_of_a_long_answer():
    assert project("<think></think><action>" + "look " * 20_000 + "</action>").valid


def test_task_text():
    assert task_text(FIRST) == "put a pen in desk."
    with pytest.raises(ValueError, match="has no 'Your task is to: '"):
        task_text("nothing here")


def test_category_comes_from_the_task_folder_alone():
    path = "data/heat/pick_two_obj_and_place/look_at_obj_in_light-Mug-None-DeskLamp-301/trial_T1"
    assert task_type_of(path) == "look_at_obj_in_light"
    for wrong in ("heat/trial", "trial", "", "pick_and_place_with_movable_recep-A-B-C-1/trial"):
        with pytest.raises(ValueError, match="names no ALFWorld task type"):
            task_type_of(wrong)
    assert parse_task_type("Heat") == parse_task_type("4") == "pick_heat_then_place_in_recep"
    with pytest.raises(ValueError, match="'boil' is unknown"):
        parse_task_type("boil")


@pytest.mark.parametrize(
    "wrong", [{"engine": "slow"}, {"validity": "any"}, {"max_turns": 0}, {"history_length": -1}], ids=str
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=re.escape(str(next(iter(wrong.values()))))):
        alfworld.AlfWorldOptions.of(wrong)


def test_without_the_extra_everything_imports_and_play_says_what_to_install():
    script = """
        import sys
        class Block:
            def find_spec(self, name, path=None, target=None):
                return None if name.split(".")[0] not in GONE else self.gone(name)
        GONE = {"textworld", "fast_downward", "alfworld", "jericho", "tatsu"}
        import importlib.util
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name in GONE else found(name, *rest)
        import alignopsd_trl.environments.alfworld as alfworld
        assert not GONE & set(sys.modules), GONE & set(sys.modules)
        for call in (alfworld.suite, alfworld.Factory().prepare, lambda: alfworld.Factory().batch(2),
                     lambda: alfworld.AlfWorldEnvironment().reset(task_id="pick_and_place_simple-a/t", game={"x": 1})):
            try:
                call()
            except alfworld.MissingPackage as error:
                print(error)
    """
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, cwd=root)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 4 and len(set(lines)) == 1
    assert 'pip install "alignopsd-trl[alfworld]"' in lines[0] and "C and a C++ compiler, make and cmake" in lines[0]
