"""LangGraph, with langchain-openai."""

from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent
from pydantic import ValidationError

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = (GraphRecursionError, ValidationError)


async def agent(row, client):
    game = Game(row["number"])
    model = ChatOpenAI(
        model="policy", api_key=client.key, base_url=client.url, http_async_client=client.openai._client, max_retries=0
    )
    player = create_react_agent(model, [game.guess], prompt=ORDERS)
    await player.ainvoke({"messages": [("user", REQUEST)]}, {"recursion_limit": 16})
    return game.reward
