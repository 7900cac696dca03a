"""A client of the Model Context Protocol, whose server is a process with the game."""

import json
import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI

from agent_programs.game import ORDERS, REQUEST

LOSES = (ValueError, TypeError, KeyError)
SERVER = str(Path(__file__).with_name("mcp_server.py"))


async def agent(row, client):
    model = AsyncOpenAI(base_url=client.url, api_key=client.key, max_retries=0)
    server = StdioServerParameters(command=sys.executable, args=[SERVER, str(row["number"])])
    messages = [{"role": "system", "content": ORDERS}, {"role": "user", "content": REQUEST}]
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        listed = (await session.list_tools()).tools
        tools = [{"type": "function", "function": {"name": one.name, "parameters": one.input_schema}} for one in listed]
        for guesses in range(1, 9):
            answer = await model.chat.completions.create(model="policy", messages=messages, tools=tools)
            message = answer.choices[0].message
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                said = await session.call_tool(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said.content[0].text})
                if "is right" in said.content[0].text:
                    return 1.0 / guesses
    return 0.0
