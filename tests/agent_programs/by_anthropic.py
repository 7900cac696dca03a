"""anthropic's client with a loop of its own: one tool, thinking sent back, streams and counts."""

import subprocess
import sys

from anthropic import Anthropic

BASH = {
    "name": "bash",
    "description": "Runs a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
SYSTEM = [{"type": "text", "text": "You mend programs.", "cache_control": {"type": "ephemeral"}}]


def main(task: str) -> None:
    client, messages = Anthropic(), [{"role": "user", "content": task}]
    asked = {"model": "policy", "system": SYSTEM, "tools": [BASH], "messages": messages}
    print(client.messages.count_tokens(**asked).input_tokens, "tokens")
    while True:
        with client.messages.stream(max_tokens=1000, **asked) as stream:
            said = stream.get_final_message()
        messages.append({"role": "assistant", "content": said.content})
        results = []
        for block in said.content:
            if block.type == "tool_use":
                done = subprocess.run(block.input["command"], shell=True, capture_output=True, text=True)
                told = {"type": "tool_result", "tool_use_id": block.id, "content": done.stdout + done.stderr or "-"}
                results.append(told)
        if said.stop_reason != "tool_use":
            return
        messages.append({"role": "user", "content": results})


main(sys.argv[1])
