"""The OpenAI Agents SDK, with its default model."""

from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, OpenAIProvider, RunConfig, Runner, function_tool

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = (ModelBehaviorError, MaxTurnsExceeded)


async def agent(row, client):
    game = Game(row["number"])
    player = Agent(name="player", instructions=ORDERS, tools=[function_tool(game.guess)], model="policy")
    config = RunConfig(model_provider=OpenAIProvider(openai_client=client.openai), tracing_disabled=True)
    await Runner.run(player, REQUEST, max_turns=8, run_config=config)
    return game.reward
