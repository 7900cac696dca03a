"""CrewAI."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = ()


def agent(row, client):
    game = Game(row["number"])
    llm = LLM(model="openai/policy", base_url=client.url, api_key=client.key)
    player = Agent(
        role="player", goal=ORDERS, backstory="None.", llm=llm, tools=[tool("guess")(game.guess)], max_iter=8
    )
    task = Task(description=REQUEST, expected_output="The number.", agent=player)
    Crew(agents=[player], tasks=[task]).kickoff()
    return game.reward
