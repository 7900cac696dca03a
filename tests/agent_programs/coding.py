"""Coding agents as their makers ship them, each with the lines that let the policy answer it. `.ci/programs` installs
them in the folder that PROGRAMS names; claude is found on PATH."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.adapters import Program, tests_pass

HERE = Path(os.environ.get("PROGRAMS", "not_there"))
NODE, PYTHON = HERE / "node" / "node_modules" / ".bin", HERE / "python" / "bin"

CODEX = """
model = "policy"
model_provider = "policy"
[model_providers.policy]
name = "policy"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
[analytics]
enabled = false
[features]
plugins = false
"""
PI = {
    "baseUrl": "{url}",
    "apiKey": "{key}",
    "api": "openai-completions",
    "models": [{"id": "policy", "name": "policy", "reasoning": False, "input": ["text"]}],
}
OPENCODE = {
    "autoupdate": False,
    "model": "policy/policy",
    "small_model": "policy/policy-aside",
    "provider": {
        "policy": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}", "apiKey": "{key}"},
            "models": {"policy": {}, "policy-aside": {}},
        }
    },
}
FLAGS = "--skip-git-repo-check --dangerously-bypass-approvals-and-sandbox".split()

PROGRAMS: dict[str, dict[str, Any]] = {
    "codex": {"command": [NODE / "codex", "exec", *FLAGS, "{task}"], "home": {".codex/config.toml": CODEX}},
    "pi": {
        "command": [NODE / "pi", "-p", "--provider", "policy", "--model", "policy", "{task}"],
        "home": {".pi/agent/models.json": json.dumps({"providers": {"policy": PI}})},
    },
    "opencode": {
        "command": [NODE / "opencode", "run", "{task}"],
        "home": {".config/opencode/opencode.json": json.dumps(OPENCODE)},
        "env": dict.fromkeys(("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_DEFAULT_PLUGINS"), "true"),
    },
    "qwen": {
        "command": [NODE / "qwen", "--yolo", "-p", "{task}"],
        "home": {".qwen/settings.json": json.dumps({"privacy": {"usageStatisticsEnabled": False}})},
        "env": {"OPENAI_MODEL": "policy"},
    },
    "mini-swe-agent": {
        "command": [PYTHON / "mini", "--yolo", "--exit-immediately", "--model", "openai/policy", "--task", "{task}"],
        "env": {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
        },
    },
    "anthropic": {"command": [PYTHON / "python", Path(__file__).with_name("by_anthropic.py"), "{task}"]},
    "claude": {
        "command": ["claude", "-p", "--dangerously-skip-permissions", "--model", "policy", "{task}"],
        "env": {
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "policy-aside",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",  # for root
        },
    },
}


def coding(name: str, files: Any, **more: str) -> Program:
    """Makes a coding agent, rewarded by pytest.

    Args:
        more: variables.
    """
    given = PROGRAMS[name]
    command, env = [str(one) for one in given["command"]], given.get("env", {}) | more
    return Program(command, home=given.get("home"), env=env, files=files, reward=tests_pass)
