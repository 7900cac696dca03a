"""DSPy's ReAct."""

import dspy

from agent_programs.game import REQUEST, Game

LOSES = (dspy.utils.exceptions.AdapterParseError,)


def agent(row, client):
    game = Game(row["number"])
    lm = dspy.LM("openai/policy", api_base=client.url, api_key=client.key, cache=False, num_retries=0)
    with dspy.context(lm=lm):
        dspy.ReAct("request -> number", tools=[game.guess], max_iters=8)(request=REQUEST)
    return game.reward
