"""The program pi: how it is run and installed."""

import json

INSTALL = "npm install -g @mariozechner/pi-coding-agent  (0.73.1 is tested)"
COMMAND = ["pi", "-p", "--provider", "policy", "--model", "policy", "{task}"]
MODELS = [{"id": "policy", "name": "policy", "reasoning": False, "input": ["text"]}]
PROVIDER = {"baseUrl": "{url}", "apiKey": "{key}", "api": "openai-completions", "models": MODELS}
HOME = {".pi/agent/models.json": json.dumps({"providers": {"policy": PROVIDER}})}
ENV = {}
SHELL = "bash"  # its tool


def said(steps, done):
    return f"<action>{SHELL}(command={steps[done]!r})</action>" if done < len(steps) else "Done."
