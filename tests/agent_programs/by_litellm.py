"""LiteLLM, a loop of its own over its completions."""

import json

from litellm import completion

from agent_programs.game import ORDERS, REQUEST, TOOL, Game

LOSES = (KeyError, TypeError, ValueError, AttributeError)


def agent(row, client):
    game = Game(row["number"])
    messages = [{"role": "system", "content": ORDERS}, {"role": "user", "content": REQUEST}]
    for _ in range(8):
        answer = completion("openai/policy", messages, api_base=client.url, api_key=client.key, tools=[TOOL])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            said = game.guess(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
        if not message.tool_calls:
            break
    return game.reward
