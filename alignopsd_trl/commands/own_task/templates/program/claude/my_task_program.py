"""The program claude (Claude Code): how it is run and installed."""

INSTALL = "npm install -g @anthropic-ai/claude-code  (proprietary)"
COMMAND = ["claude", "-p", "--dangerously-skip-permissions", "--model", "policy", "{task}"]
HOME = {}
ENV = {
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "policy-aside",  # titles are not trained
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",  # for root
}
SHELL = "Bash(command={!r}, description='Does it.')"  # a call of its tool
DONE = "Done."
