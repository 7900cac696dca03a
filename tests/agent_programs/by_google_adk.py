"""Google's Agent Development Kit."""

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = (ValueError, TypeError, AttributeError)


async def agent(row, client):
    game = Game(row["number"])
    model = LiteLlm("openai/policy", api_base=client.url, api_key=client.key)
    runner = InMemoryRunner(Agent(name="player", instruction=ORDERS, tools=[game.guess], model=model))
    await runner.run_debug(REQUEST, quiet=True)
    return game.reward
