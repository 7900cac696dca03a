"""The program opencode: how it is run and installed."""

import json

INSTALL = "npm install -g opencode-ai  (1.18.33 is tested)"
COMMAND = ["opencode", "run", "{task}"]
PROVIDER = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{url}", "apiKey": "{key}"},
    "models": {"policy": {}, "policy-aside": {}},
}
SETTINGS = {
    "autoupdate": False,
    "model": "policy/policy",
    "small_model": "policy/policy-aside",  # titles are not trained
    "provider": {"policy": PROVIDER},
}
HOME = {".config/opencode/opencode.json": json.dumps(SETTINGS)}
ENV = {"OPENCODE_DISABLE_MODELS_FETCH": "true", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "true"}
SHELL = "bash(command={!r}, description='Does it.')"  # a call of its tool
DONE = "Done."
