"""The program pi: how it is run and installed."""

import json

INSTALL = "npm install -g @mariozechner/pi-coding-agent  (0.73.1 is tested)"
COMMAND = ["pi", "-p", "--provider", "policy", "--model", "policy", "{task}"]
MODELS = [{"id": "policy", "name": "policy", "reasoning": False, "input": ["text"]}]
PROVIDER = {"baseUrl": "{url}", "apiKey": "{key}", "api": "openai-completions", "models": MODELS}
HOME = {".pi/agent/models.json": json.dumps({"providers": {"policy": PROVIDER}})}
ENV = {}
SHELL = "bash(command={!r})"  # a call of its tool
DONE = "Done."
