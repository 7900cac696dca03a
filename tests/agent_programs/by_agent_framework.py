"""Microsoft's agent-framework, with its default client."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = ()


async def agent(row, client):
    game = Game(row["number"])
    model = OpenAIChatClient(model="policy", base_url=client.url, api_key=client.key)
    await Agent(client=model, instructions=ORDERS, tools=[game.guess]).run(REQUEST)
    return game.reward
