"""The OpenAI Agents SDK, asking for chat completions."""

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
)

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = (ModelBehaviorError, MaxTurnsExceeded)


async def agent(row, client):
    game = Game(row["number"])
    model = OpenAIChatCompletionsModel(model="policy", openai_client=client.openai)
    player = Agent(name="player", instructions=ORDERS, tools=[function_tool(game.guess)], model=model)
    await Runner.run(player, REQUEST, max_turns=8, run_config=RunConfig(tracing_disabled=True))
    return game.reward
