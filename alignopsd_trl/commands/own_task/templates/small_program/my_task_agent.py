"""A small coding agent: each response may have one line `$ COMMAND`, which bash runs. It knows nothing of training.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python my_task_agent.py TURNS TASK
"""

import json
import os
import re
import subprocess
import sys
from urllib.request import Request, urlopen

SYSTEM = "Answer with one line `$ COMMAND`, or `done`."
SHOWN, SECONDS = 400, 10  # characters of an output, and of a command


def ask(messages):
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    with urlopen(Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def output(command):
    try:
        done = subprocess.run(
            ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {SECONDS} s"
    return done.stdout.decode(errors="replace")[-SHOWN:].rstrip() or "no output"


messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sys.argv[2]}]
for _ in range(int(sys.argv[1])):
    said = ask(messages)
    command = re.search(r"^\$ (.+)", said, re.MULTILINE)
    if command is None:
        break
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": output(command[1])}]
