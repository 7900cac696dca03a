"""The program mini-swe-agent: how it is run and installed."""

INSTALL = "pipx install mini-swe-agent  (2.4.6 is tested)"
COMMAND = ["mini", "--yolo", "--exit-immediately", "--model", "openai/policy", "--task", "{task}"]
HOME = {}
ENV = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
SHELL = "bash(command={!r})"  # a call of its tool
DONE = "<action>bash(command='echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT')</action>"
