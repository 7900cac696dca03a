"""The program codex: how it is run and installed."""

INSTALL = "npm install -g @openai/codex  (0.171.0 is tested)"
COMMAND = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{task}"]
SETTINGS = """
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
HOME = {".codex/config.toml": SETTINGS}
ENV = {}
SHELL = "exec_command(cmd={!r})"  # a call of its tool
DONE = "Done."
