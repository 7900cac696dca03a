"""The scripted player, by the program's own shell: it mends the line that the teacher's text names. Without the text it
reads the modules and gives up."""

import re

from my_task_program import DONE, SHELL


def play(view, environment, skill, draw):
    """The response to one request. All messages are `view.context.now.messages`."""
    tools = [one["function"]["name"] for one in view.context.now.tools]
    if SHELL.partition("(")[0] not in tools:
        return "done"  # for a title, which some programs ask for
    steps = ["cat $(ls *.py | grep -v test_)"]
    if found := re.search(r"Line (\d+) of (\S+) must be:\n(.+)", skill):
        line, file, right = found.groups()
        steps.append(f"sed -i '{line}s|.*|{right}|' {file} && python -m pytest -q")
    done = sum(one["role"] == "tool" for one in view.context.now.messages)
    return f"<action>{SHELL.format(steps[done])}</action>" if done < len(steps) else DONE
