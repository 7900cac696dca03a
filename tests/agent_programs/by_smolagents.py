"""smolagents, a plain function."""

from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

from agent_programs.game import REQUEST, Game

LOSES = ()


def agent(row, client):
    game = Game(row["number"])

    @tool
    def guess(number: int) -> str:
        """Guess the number.

        Args:
            number: Between 1 and 10.
        """
        return game.guess(number)

    model = OpenAIServerModel(model_id="policy", api_key=client.key)
    model.client = client.openai_sync
    player = ToolCallingAgent(tools=[guess], model=model, max_steps=8, verbosity_level=LogLevel.OFF)
    player.run(REQUEST)
    return game.reward
