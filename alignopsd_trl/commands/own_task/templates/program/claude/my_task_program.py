"""The program claude (Claude Code): how it is run and installed."""

INSTALL = "npm install -g @anthropic-ai/claude-code  (proprietary)"
COMMAND = ["claude", "-p", "--dangerously-skip-permissions", "--model", "policy", "{task}"]
HOME = {}
ENV = {
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "policy-aside",  # titles are not trained
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",  # for root
}
SHELL = "Bash"  # its tool


def said(steps, done):
    if done == len(steps):
        return "Done."
    return f"<action>{SHELL}(command={steps[done]!r}, description='Does it.')</action>"
