"""The scripted player: it reads the module, writes its second line anew and is done. The operator is the teacher's, or
without the teacher's text a guess: any but the one that is there."""

import re

OPERATORS = ["+", "-", "*", "//", "%"]


def play(view, environment, skill, draw):
    """The response to one request. All messages are `view.context.now.messages`."""
    messages = view.context.now.messages
    file = re.search(r"\w+\.py\.$", messages[1]["content"])[0].rstrip(".")
    if len(messages) == 2:
        return f"<think>read {file}</think>\n$ cat {file}"
    if len(messages) > 4:
        return "<think>mended</think>\ndone"
    name, first, wrong, second = re.search(r"def (\w+).*\n +return (\w+) (\S+) (\w+)", view.observation).groups()
    told = re.search(r"return \w+ (\S+) \w+", skill)
    right = told[1] if told else draw.choice([one for one in OPERATORS if one != wrong])
    return f"<think>{name}: {right}</think>\n$ sed -i '2s|.*|    return {first} {right} {second}|' {file}"
