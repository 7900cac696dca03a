"""A coding task for an agent's program: what `alignopsd new --program` writes for one."""

from __future__ import annotations

from alignopsd_trl.commands.own_task.options import SMALL
from alignopsd_trl.commands.own_task.worlds import HELD_OUT, Written

CONVERSES = """
    "history": "conversation",  # an episode is one row, as far as the program only adds messages
    "past_thinking": "keep","""
SMALLER = {'"max_prompt_length": 512': '"max_prompt_length": 1024', "config=START)": "config=START, episodes=256)"}


def asked_program(name: str) -> Written:
    """Returns what the templates become for a program of `PROGRAMS`."""
    lines = ('"panel_limit": 100,', '"panel_limit": 40,')
    changes = {line: f"{line}{CONVERSES}{HELD_OUT}" for line in lines}
    return Written(changes=changes | (SMALLER if name == SMALL else {}), part=name)
