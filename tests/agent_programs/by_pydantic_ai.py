"""pydantic-ai, with the model that `Agent("openai:...")` makes."""

from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = (UnexpectedModelBehavior, UsageLimitExceeded)


async def agent(row, client):
    game = Game(row["number"])
    model = OpenAIResponsesModel("policy", provider=OpenAIProvider(openai_client=client.openai))
    player = Agent(model, system_prompt=ORDERS, tools=[game.guess])
    await player.run(REQUEST, usage_limits=UsageLimits(request_limit=8))
    return game.reward
